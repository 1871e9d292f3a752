"""How fast a replica answers, as measured of its last minute: what a request would take at the least.

    prompt   seconds to the first token, of prompts as long as this one, or of shorter ones
    answer   seconds for each further token, beside as many sequences as run now, or beside fewer

What was not measured is taken from the plan, at the fast end of its band; what is not planned either is not known. So
an estimate that is too long for a deadline is a reason to refuse, and a figure that grew old can't keep requests out
that would show a new one. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Answered", "Expected", "Pace", "Planned", "planned_of"]

_HOLDS_FOR_S = 60.0
_SMOOTHING = 0.2
# Of a whole answer only its end is seen. Where the prompt has no more tokens than so many for each of the answer, which
# takes at least ten times as long for each of its own, the time is the answer's.
_PROMPT_PER_ANSWER = 2


class Expected(NamedTuple):
    """Seconds that a request takes in the queue, to its first token, and from there to its end. None: not known."""

    queue_s: float | None
    prompt_s: float | None
    answer_s: float | None

    @property
    def service_s(self) -> float:
        """What is known of its time at the worker."""
        return (self.prompt_s or 0.0) + (self.answer_s or 0.0)

    @property
    def total_s(self) -> float:
        """What is known of all."""
        return (self.queue_s or 0.0) + self.service_s


class Planned(NamedTuple):
    """Seconds for a token of a prompt, and for one of an answer. None: not planned."""

    prompt_s: float | None = None
    answer_s: float | None = None


class Answered(NamedTuple):
    """A request that a replica answered.

    Attributes:
        num_prompt_tokens, num_answer_tokens: the latter of each sequence.
        num_sequences: that ran there when it had its slots, its own among them.
        first_s: from there to its first token; None where that was not seen.
        held_s: from there to its end.
    """

    num_prompt_tokens: int
    num_answer_tokens: float
    num_sequences: int
    first_s: float | None
    held_s: float


@dataclass(slots=True)
class _Mean:
    seconds: float
    size: float
    at_s: float


class _LeastSeconds:
    """Means of what took longer the larger it was, by powers of two of its size."""

    def __init__(self, *, is_proportional: bool) -> None:
        self._is_proportional = is_proportional
        self._means: dict[int, _Mean] = {}

    def learn(self, size: int, seconds: float, now_s: float) -> None:
        mean = self._means.get(size.bit_length())
        if mean is None or now_s - mean.at_s > _HOLDS_FOR_S:
            self._means[size.bit_length()] = _Mean(seconds, size, now_s)
            return
        mean.seconds += _SMOOTHING * (seconds - mean.seconds)
        mean.size += _SMOOTHING * (size - mean.size)
        mean.at_s = now_s

    def of(self, size: int, now_s: float) -> float | None:
        """Of such a size, or of the next smaller one that is known."""
        magnitude = size.bit_length()
        known = [key for key, mean in self._means.items() if key <= magnitude and now_s - mean.at_s <= _HOLDS_FOR_S]
        if not known:
            return None
        mean = self._means[max(known)]
        is_scaled = self._is_proportional and max(known) == magnitude
        return mean.seconds * (size / mean.size if is_scaled else 1.0)


class Pace:
    """Of one replica. Times are those of one clock."""

    def __init__(self) -> None:
        self._first = _LeastSeconds(is_proportional=True)
        self._each = _LeastSeconds(is_proportional=False)

    def learn(self, answered: Answered, now_s: float) -> None:
        """A request is over."""
        prompt, answer, first_s = max(1, answered.num_prompt_tokens), answered.num_answer_tokens, answered.first_s
        if first_s is None and answer <= 1:
            first_s = answered.held_s
        if first_s is not None:
            self._first.learn(prompt, first_s, now_s)
            if answer > 1 and answered.held_s > first_s:
                self._each.learn(answered.num_sequences, (answered.held_s - first_s) / (answer - 1), now_s)
        elif prompt <= _PROMPT_PER_ANSWER * answer:
            self._each.learn(answered.num_sequences, answered.held_s / answer, now_s)

    def expected(
        self,
        queue_s: float | None,
        num_prompt_tokens: int,
        max_tokens: int | None,
        num_sequences: int,
        now_s: float,
        planned: Planned,
        num_rounds: int = 1,
    ) -> Expected:
        """What a request would take.

        `num_sequences`: that would run at once. `num_rounds`: how many answers follow each other, where there are more
        than slots.
        """
        prompt_s = self._first.of(max(1, num_prompt_tokens), now_s)
        if prompt_s is None and planned.prompt_s is not None:
            prompt_s = planned.prompt_s * num_prompt_tokens
        each_s = self._each.of(num_sequences, now_s)
        if each_s is None:
            each_s = planned.answer_s
        answer_s = None
        if max_tokens is not None and each_s is not None:
            answer_s = each_s * (num_rounds * max_tokens - 1) if max_tokens else 0.0
        return Expected(queue_s, prompt_s, answer_s)


def planned_of(plan: Mapping[str, Any] | None) -> Planned:
    """From `Plan.to_json()`: the fast ends of its bands, of one stream. Under a load others make it slower."""
    speed = (plan or {}).get("speed")
    if not speed or speed["load"].get("concurrency") != 1 or not speed["load"]["input"]:
        return Planned()
    return Planned(speed["ttft_ms"]["low"] / 1000 / speed["load"]["input"], speed["tpot_ms"]["low"] / 1000)
