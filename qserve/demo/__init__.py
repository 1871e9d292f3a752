"""Where the demo models are, and the code that trained them.

The checkpoints have a distribution of their own (`demo/` of a clone, 10 MB): `chat/`, a tiny Qwen3ForCausalLM, is what
`--model demo` means, `reward/`, the same body with a scoring head, `--reward demo`.

about.py         what the model says about itself and about qserve, and what it declines
words.py         the words that it copies, reverses and counts
tasks.py         questions with answers that code generates; which of them training never sees
conversations.py questions become ChatML conversations: system prompts, several turns, a mask of what is learned
calling.py       questions for which it calls a calculator
tokenizer.py     a byte-level BPE with Qwen's own splitting and special tokens
train_chat.py    trains the chat model from scratch      (torch)
preferences.py   pairs of answers to the same questions: right and wrong, helpful and curt
train_reward.py  trains the reward model on them         (torch)
measure.py       exact match on held-out questions, over HTTP
make_evals.py    the lm-eval items in evals/
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from qserve.errors import ModelNotFound

__all__ = ["chat_model_path", "reward_model_path"]

_PACKAGE = "qserve_demo"


def chat_model_path() -> Path:
    """The folder of the demo chat checkpoint: config, weights, tokenizer, chat template. Raises ModelNotFound."""
    return _models() / "chat"


def reward_model_path() -> Path:
    """The folder of the demo reward checkpoint, trained on preferences over the chat model's tasks.

    Raises ModelNotFound where the demo models are not installed.
    """
    return _models() / "reward"


def _models() -> Path:
    """Of the clone that this package lies in, else of the installed distribution."""
    clone = Path(__file__).parents[2] / "demo" / _PACKAGE
    if clone.is_dir():
        return clone
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise ModelNotFound(
            "the demo models are not installed; install the wheel qserve_llm_demo, which comes with qserve's, or run "
            "pip install ./demo in a clone. --model also takes a folder or a hub id"
        )
    return Path(found.origin).parent
