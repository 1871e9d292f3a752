"""What the steps of a plan take, in sentences: --explain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Protocol, runtime_checkable

from qserve.planner.speed.calibration import CorrectedSteps
from qserve.planner.speed.figures import Figures
from qserve.planner.speed.load import Load
from qserve.planner.speed.simulated import Steps
from qserve.planner.speed.steps.times import SHORTLIST_SHARE, StepTimes
from qserve.planner.speed.terms.card import CardSpeed
from qserve.units import format_seconds

__all__ = ["ExplainedSteps", "explained"]

_IN_WORDS = {
    "gemms": "matrix products",
    "states": "states of linear attention",
    "reduce": "all-reduce",
    "lm_head": "head",
    "pointwise": "norms and gates",
    "engine": "the engine itself",
}
"""Of terms whose names are not words."""


@runtime_checkable
class ExplainedSteps(Protocol):
    """An engine's own steps (`EnginePlanner.card_steps`) that can be put into words."""

    def explained(self) -> Iterator[str]:
        """Sentences on what its steps take."""
        ...


def explained(steps: Steps, max_num_batched_tokens: int, figures: Figures, load: Load) -> tuple[str, ...]:
    """A decode step of the fullest moment, and a prompt's step alone, by what takes the time."""
    steps = steps.steps if isinstance(steps, CorrectedSteps) else steps
    if isinstance(steps, ExplainedSteps):
        return tuple(steps.explained())
    if not isinstance(steps, StepTimes):
        return ()
    batch, context = max(1, figures.peak_running), load.input_tokens + load.output_tokens / 2
    terms = asdict(steps.decode_terms(batch, context))
    parts = ", ".join(f"{_IN_WORDS.get(name, name)} {value / 1000:.2f}" for name, value in terms.items() if value >= 5)
    prompt = min(load.input_tokens, max_num_batched_tokens)
    return (
        f"a decode step of {batch} sequence{'s' * (batch > 1)} of {context:,.0f} tokens, ms: {parts}",
        f"a step with a prompt of {prompt:,} tokens alone: {format_seconds(steps.mixed_s(0, 0, [(prompt, 0)]))}; HTTP "
        f"and tokenizer take {steps.costs.intake_ms + steps.costs.queued_ms:.0f} ms before it",
        f"weights: {_weights(steps)}",
        *_head_copy(steps),
        f"source: {_rows_of(steps.card)}, era {steps.costs.era} of configs/speed.toml; docs/speed.md",
    )


def _rows_of(card: CardSpeed) -> str:
    if card.interconnect == "memory":
        rates = "a server's assumed rates" if card.like else "rates and products as qserve doctor --measure found them"
        return f"[cpu_kernels] of configs/speed.toml, {rates}"
    return f"{card.like or card.name}'s rows in configs/speed_kernels.toml"


def _weights(steps: StepTimes) -> str:
    """How products run: cards without a format's arithmetic read its bytes and multiply in 16 bit."""
    network = steps.network
    held = network.expert_format if network.moe_layers else network.gemms[0].weights
    size = "1 byte" if held.bytes_per_weight == 1 else f"{held.bytes_per_weight:.4g} bytes"
    how = "products as they were measured" if held.name in steps.card.products else f"multiplied in {held.math}"
    return f"{held.name}, {size} each, {how}"


def _head_copy(steps: StepTimes) -> tuple[str, ...]:
    if not steps.shortlist_rows:
        return ()
    return (
        f"head: up to {steps.shortlist_rows} sequences, greedy or drawn by top-k, {100 * SHORTLIST_SHARE:.0f} % of its "
        "time in bf16: a copy in int8 is read, and in bf16 the tokens that it leaves (docs/results/cpu.md)",
    )
