"""The bundled demo models and the code that trained them.

chat/            the checkpoint that `--model demo` means: a tiny Qwen3ForCausalLM
reward/          the checkpoint that `--reward demo` means: the same body with a scoring head
about.py         what the model says about itself and about qserve, and what it declines
words.py         the words that it copies, reverses and counts
tasks.py         questions with answers that code generates; which of them training never sees
conversations.py questions become ChatML conversations: system prompts, several turns, a mask of what is learned
tokenizer.py     a byte-level BPE with Qwen's own splitting and special tokens
train_chat.py    trains the chat model from scratch      (torch)
preferences.py   pairs of answers to the same questions: right and wrong, helpful and curt
train_reward.py  trains the reward model on them         (torch)
measure.py       exact match on held-out questions, over HTTP
make_evals.py    the lm-eval items in evals/
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["chat_model_path", "reward_model_path"]


def chat_model_path() -> Path:
    """The folder of the demo chat checkpoint: config, weights, tokenizer, chat template."""
    return Path(__file__).parent / "chat"


def reward_model_path() -> Path:
    """The folder of the demo reward checkpoint, trained on preferences over the chat model's tasks."""
    return Path(__file__).parent / "reward"
