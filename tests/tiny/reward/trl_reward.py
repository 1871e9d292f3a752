"""The reward function that docs/trainers.md shows for TRL, with a key, and what it was called with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 60.0


@dataclass
class TrlReward:
    """TRL calls it with prompts and completions: messages, where the data set is conversational."""

    url: str
    key: str
    conversations: list[Any] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    __name__ = "served"

    def __call__(self, prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
        self.conversations = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        body, headers = {"conversations": self.conversations}, {"Authorization": f"Bearer {self.key}"}
        answer = httpx.post(f"{self.url}/v1/reward", json=body, headers=headers, timeout=TIMEOUT_S)
        answer.raise_for_status()
        self.rewards = [row["reward"] for row in answer.json()["data"]]
        return self.rewards
