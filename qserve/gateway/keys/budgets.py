"""What keys have left of their minutes and of the day. Pure: times are given.

    requests a minute   a bucket of that many, which fills again by as many a minute; each request takes one
    tokens a minute     a bucket too; a request takes what it is estimated to need, and at its end what it really took
    tokens a day        those of requests that ended since 00:00 UTC, and the estimates of those that run

A request is let in where something is left, so that one may go beyond a limit by its own tokens: the length of an
answer is not known before, and one that is larger than what a minute gives would never begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from qserve.gateway.keys.entries import KeyEntry
from qserve.wire.errors import ApiError

__all__ = ["Budgets", "Spent", "day_of"]

_DAY_S = 24 * 3600
_MINUTE_S = 60.0


@dataclass(frozen=True)
class Spent:
    """What a request took."""

    prompt_tokens: int
    generated_tokens: int

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens


def day_of(unix_s: float) -> int:
    """Days since 1970, in UTC."""
    return int(unix_s // _DAY_S)


@dataclass
class _Bucket:
    """Holds at most `most`, fills by `most` a minute, and may be in debt."""

    most: int
    level: float
    at_s: float

    def fill(self, most: int, now_s: float) -> None:
        """To this time; `most` may be another since the last one."""
        added = max(0.0, now_s - self.at_s) * most / _MINUTE_S
        self.level, self.most, self.at_s = min(float(most), self.level + added), most, now_s

    def seconds_until(self, level: float) -> float:
        """Until it holds so much."""
        return max(0.0, level - self.level) * _MINUTE_S / self.most


@dataclass
class _KeyUse:
    day: int
    requests: _Bucket | None = None
    tokens: _Bucket | None = None
    num_requests: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    num_refused: int = 0
    running: dict[int, int] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens


class Budgets:
    """What all keys have used, by name."""

    def __init__(self, clock: Callable[[], float], used_today: Mapping[str, tuple[int, int, int]]) -> None:
        """`clock`: seconds since 1970. `used_today`: requests, prompt and generated tokens before this start."""
        self._clock = clock
        self._used: dict[str, _KeyUse] = {}
        self._next_number = 0
        for name, (num_requests, prompt_tokens, generated_tokens) in used_today.items():
            use = self._use_of(name)
            use.num_requests = num_requests
            use.prompt_tokens, use.generated_tokens = prompt_tokens, generated_tokens

    def begin(self, entry: KeyEntry, num_tokens: int) -> int:
        """Lets a request of about so many tokens in; its number for `end`.

        Raises ApiError 429, with when to come again.
        """
        use = self._use_of(entry.name)
        error = self._refusal(entry, use)
        if error is not None:
            use.num_refused += 1
            raise error
        if use.requests is not None:
            use.requests.level -= 1
        if use.tokens is not None:
            use.tokens.level -= num_tokens
        use.num_requests += 1
        self._next_number += 1
        use.running[self._next_number] = num_tokens
        return self._next_number

    def end(self, name: str, number: int, spent: Spent) -> None:
        """A request is over; a second end of the same one counts for nothing."""
        use = self._use_of(name)
        estimated = use.running.pop(number, None)
        if estimated is None:
            return
        use.prompt_tokens += spent.prompt_tokens
        use.generated_tokens += spent.generated_tokens
        if use.tokens is not None:
            use.tokens.level += estimated - spent.num_tokens

    def document(self, entries: Iterable[KeyEntry]) -> list[dict[str, Any]]:
        """Today's use of these keys, with their limits and what is left."""
        return [self._row(entry) for entry in entries]

    def _row(self, entry: KeyEntry) -> dict[str, Any]:
        use = self._use_of(entry.name)
        self._fill(entry, use)
        left = None if entry.tokens_per_day is None else max(0, entry.tokens_per_day - use.num_tokens)
        return {
            "name": entry.name,
            "models": None if entry.models is None else list(entry.models),
            "priority": entry.priority,
            "expires": None if entry.expires is None else entry.expires.isoformat(),
            "requests": use.num_requests,
            "prompt_tokens": use.prompt_tokens,
            "generated_tokens": use.generated_tokens,
            "refused": use.num_refused,
            "running": len(use.running),
            "requests_per_minute": entry.requests_per_minute,
            "tokens_per_minute": entry.tokens_per_minute,
            "tokens_per_day": entry.tokens_per_day,
            "tokens_left_today": left,
        }

    def _use_of(self, name: str) -> _KeyUse:
        """Of today: what was used on another day is forgotten, what runs goes on."""
        today = day_of(self._clock())
        use = self._used.setdefault(name, _KeyUse(today))
        if use.day != today:
            use.day = today
            use.num_requests = use.prompt_tokens = use.generated_tokens = use.num_refused = 0
        return use

    def _fill(self, entry: KeyEntry, use: _KeyUse) -> None:
        now_s = self._clock()
        use.requests = _filled(use.requests, entry.requests_per_minute, now_s)
        use.tokens = _filled(use.tokens, entry.tokens_per_minute, now_s)

    def _refusal(self, entry: KeyEntry, use: _KeyUse) -> ApiError | None:
        self._fill(entry, use)
        now_s = self._clock()
        if entry.tokens_per_day is not None:
            reserved = sum(use.running.values())
            if use.num_tokens + reserved >= entry.tokens_per_day:
                return _of_the_day(entry, use, reserved, now_s)
        waits = []
        if use.requests is not None and use.requests.level < 1:
            waits.append((use.requests.seconds_until(1), f"{entry.requests_per_minute:,} requests a minute"))
        if use.tokens is not None and use.tokens.level <= 0:
            waits.append((use.tokens.seconds_until(1), f"{entry.tokens_per_minute:,} tokens a minute"))
        if not waits:
            return None
        wait_s, limit = max(waits)
        after_s = max(1, math.ceil(wait_s))
        message = f"the key {entry.name!r} may send {limit}, and has; send the request again in {after_s} s"
        return ApiError(429, message, "rate_limit_exceeded", retry_after_s=after_s)


def _of_the_day(entry: KeyEntry, use: _KeyUse, reserved: int, now_s: float) -> ApiError:
    after_s = max(1, math.ceil((day_of(now_s) + 1) * _DAY_S - now_s))
    running = f" (and requests that run will need about {reserved:,})" if reserved else ""
    hours, minutes = divmod(math.ceil(after_s / 60), 60)
    message = (
        f"the key {entry.name!r} has used {use.num_tokens:,} of its {entry.tokens_per_day:,} tokens of this day"
        f"{running}; it has them again at 00:00 UTC, in {hours} h {minutes:02} min"
    )
    if use.num_tokens < (entry.tokens_per_day or 0):  # only what runs stands in the way
        return ApiError(429, message, "rate_limit_exceeded", retry_after_s=min(after_s, 5))
    return ApiError(429, message, "tokens_per_day_exceeded", retry_after_s=after_s)


def _filled(bucket: _Bucket | None, most: int | None, now_s: float) -> _Bucket | None:
    if most is None:
        return None
    if bucket is None:
        return _Bucket(most, float(most), now_s)
    bucket.fill(most, now_s)
    return bucket
