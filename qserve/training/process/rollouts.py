"""Samples of what a policy writes while it is trained, with what each reward function gave it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from qserve.training.process.events import EventLog

__all__ = ["RolloutSamples", "samples_of"]

_TIMES = 10
"""Over a run, beside the first step and the last."""
_SAMPLES = 4
_MOST_CHARACTERS = 2000


class RolloutSamples(TrainerCallback):  # type: ignore[misc]
    """Tells the answers to one prompt at a time, of some of the steps; `trainer` is TRL's of GRPO."""

    def __init__(self, events: EventLog, trainer: Any) -> None:
        self._events, self._trainer = events, trainer

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        every = max(1, state.max_steps // _TIMES)
        is_due = state.global_step in (1, state.max_steps) or state.global_step % every == 0
        if "loss" not in (logs or {}) or not is_due:
            return
        samples = samples_of(self._trainer._logs, args.num_generations, self._trainer.reward_weights.tolist())
        if samples:
            self._events.write("rollouts", step=state.global_step, samples=samples)


def samples_of(logs: Mapping[str, Any], num_generations: int, weights: Sequence[float]) -> list[dict[str, Any]]:
    """Of the last prompt in TRL's log of a batch: up to four answers. A reward that a function left out is None."""
    count = len(logs["prompt"])
    start = max(0, count - num_generations)
    names = list(logs["rewards"])
    found = []
    for index in range(start, min(count, start + _SAMPLES)):
        each = {name: logs["rewards"][name][index] for name in names}
        weighed = [one * value for one, value in zip(weights, each.values(), strict=True) if not math.isnan(value)]
        found.append(
            {
                "prompt": _text(logs["prompt"][index]),
                "completion": _text(logs["completion"][index]),
                "rewards": each,
                "reward": sum(weighed),
                "advantage": logs["advantages"][index],
            }
        )
    return found


def _text(value: Any) -> str:
    """Of a conversation the last turn."""
    text = value if isinstance(value, str) else str(value[-1].get("content") or "") if value else ""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"
