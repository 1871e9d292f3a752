"""Whether drafting pays: the same loads without and with each way to draft, their differences, and a verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Drafted", "LoadKey", "Setting", "Verdict", "verdict_of"]

_HELPS, _COSTS = 1.05, 0.95
"""Ratios of tokens a second that are more than the noise of such a load."""


@dataclass(frozen=True)
class LoadKey:
    """One load: tokens of a prompt (None: a data set's own), and requests at once."""

    input_len: int | None
    streams: int


@dataclass(frozen=True)
class Drafted:
    """What one load came to.

    Attributes:
        tokens_per_s: generated, over all streams.
        num_drafts: steps of a sequence in which something was drafted; 0 without drafts.
        num_drafted, num_accepted: tokens that were drafted, and those of them that the model confirmed.
    """

    tokens_per_s: float
    ttft_ms: float | None
    tpot_ms: float | None
    num_drafts: int = 0
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def acceptance(self) -> float | None:
        """Share of the drafted tokens; None where none were."""
        return self.num_accepted / self.num_drafted if self.num_drafted else None

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a step with a draft brings its sequence, its own one included; None without drafts."""
        return 1 + self.num_accepted / self.num_drafts if self.num_drafts else None


@dataclass(frozen=True)
class Setting:
    """A way to draft, or none: `flags` of `qserve up` ask for it. `run` is the id of the run that was measured."""

    name: str
    flags: tuple[str, ...]
    loads: Mapping[LoadKey, Drafted]
    run: str = ""

    def gains(self, plain: Setting) -> dict[LoadKey, float]:
        """How many times the tokens a second of `plain`, by load."""
        return {
            key: one.tokens_per_s / plain.loads[key].tokens_per_s
            for key, one in self.loads.items()
            if key in plain.loads and plain.loads[key].tokens_per_s
        }

    def to_json(self) -> dict[str, Any]:
        """With its loads in a list."""
        loads = [
            {**asdict(key), **asdict(one), "acceptance": one.acceptance, "tokens_per_step": one.tokens_per_step}
            for key, one in self.loads.items()
        ]
        return {"name": self.name, "flags": list(self.flags), "run": self.run, "loads": loads}


@dataclass(frozen=True)
class Verdict:
    """Which setting to serve with (its flags, none: without drafts), why, and from how many streams on it is a loss."""

    name: str
    flags: tuple[str, ...]
    sentences: tuple[str, ...]
    loss_from: int | None = None


def verdict_of(plain: Setting, others: Sequence[Setting]) -> Verdict:
    """The setting whose drafts help at the most streams, judged by its worse prompt length at each.

    Of two that reach as far it is the one that gains more. Without any that helps, none.
    """
    judged = {one.name: _worst_by_streams(one.gains(plain)) for one in others}
    sentences = tuple(_sentence(one.name, judged[one.name], _best_by_streams(one.gains(plain))) for one in others)
    helping = [one for one in others if _reach(judged[one.name])]
    if not helping:
        return Verdict(plain.name, plain.flags, (*sentences, "Serve without drafts."))
    best = max(helping, key=lambda one: (_reach(judged[one.name]), sum(judged[one.name].values())))
    losses = _losses(judged[best.name])
    reach, most = _reach(judged[best.name]), max(judged[best.name])
    until = "" if reach == most else f" for up to {_streams(reach)}"
    more = f", and without drafts from {losses[0]} on" if losses else ""
    return Verdict(
        best.name, best.flags, (*sentences, f"Serve with {best.name}{until}{more}."), losses[0] if losses else None
    )


def _worst_by_streams(gains: Mapping[LoadKey, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, gain in gains.items():
        found[key.streams] = min(gain, found.get(key.streams, gain))
    return dict(sorted(found.items()))


def _best_by_streams(gains: Mapping[LoadKey, float]) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, gain in gains.items():
        found[key.streams] = max(gain, found.get(key.streams, gain))
    return found


def _reach(worst: Mapping[int, float]) -> int:
    """The most streams up to which it helps, from one on; 0: it does not at the fewest."""
    reach = 0
    for streams, gain in worst.items():
        if gain < _HELPS:
            break
        reach = streams
    return reach


def _losses(worst: Mapping[int, float]) -> list[int]:
    return [streams for streams, gain in worst.items() if gain <= _COSTS]


def _sentence(name: str, worst: Mapping[int, float], best: Mapping[int, float]) -> str:
    """'n-grams: a gain up to 8 streams (+12 to +31 %), a loss from 32 on (-18 %).'"""
    reach, losses = _reach(worst), _losses(worst)
    parts = []
    if reach:
        within = [streams for streams in worst if streams <= reach]
        lowest, highest = min(worst[one] for one in within), max(best[one] for one in within)
        parts.append(f"a gain up to {_streams(reach)} ({_change(lowest)} to {_change(highest)})")
    if losses:
        parts.append(f"a loss from {_streams(losses[0])} on ({_change(min(worst[one] for one in losses))} at worst)")
    return f"{name}: {', '.join(parts) or 'no difference beyond the noise'}."


def _streams(count: int) -> str:
    return f"{count} stream" if count == 1 else f"{count} streams"


def _change(gain: float) -> str:
    return f"{100 * (gain - 1):+.0f} %"
