"""A trainer: one step of TRL's GRPO on the demo chat model, rewarded by the host at each URL.

    python grpo_step.py KEY FOLDER URL…

The last line that it prints is JSON: `{"conversations", "rewards": [of the first URL, …], "logged"}`; `logged` is the
mean of the sums.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import httpx
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from qserve.demo import chat_model_path

KEY, FOLDER, *URLS = sys.argv[1:]
QUESTIONS = ("What is 12+30?", "What is 5+6?")
seen: dict[str, Any] = {"rewards": [[] for _ in URLS]}


def rewarded_by(number: int, url: str) -> Callable[..., list[float]]:
    def reward(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        """TRL's signature, and what docs/trainers.md shows."""
        conversations = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        headers = {"Authorization": f"Bearer {KEY}"}
        answer = httpx.post(f"{url}/v1/reward", json={"conversations": conversations}, headers=headers, timeout=60)
        answer.raise_for_status()
        rewards = [row["reward"] for row in answer.json()["data"]]
        seen["conversations"], seen["rewards"][number] = conversations, rewards
        return rewards

    return reward


trainer = GRPOTrainer(
    model=str(chat_model_path()),
    reward_funcs=[rewarded_by(number, url) for number, url in enumerate(URLS)],
    args=GRPOConfig(
        output_dir=FOLDER, per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=1,
        use_cpu=True, bf16=False, report_to=[], logging_steps=1, save_strategy="no", seed=1,
    ),
    train_dataset=Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in QUESTIONS]),
)  # fmt: skip
trainer.train()
(logged,) = (row["reward"] for row in trainer.state.log_history if "reward" in row)
print(json.dumps({**seen, "logged": logged}))
