"""Whether a card draws from a row's top-p by a kernel of ours (`triton_nucleus`), or by a sort of the whole row.

Compared with the sort on the card at hand before it is trusted.
"""

from __future__ import annotations

import logging

import torch

from qserve.engines.transformers.kernels.refusals import TOP_P_DRAW, Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.sampling.draw import ON_CARDS, Truncation, drawn_by_sort
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.model.trials.ask import tried
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = ["choose_draw", "draw_trial", "try_draw"]

_log = logging.getLogger("qserve.worker")
_TEMPERATURES = (0.2, 0.7, 1.0, 3.0, 40.0)  # the last one's nucleus has more than are gathered


def choose_draw(device: torch.device, vocab_size: int, *, afresh: bool = False) -> tuple[Refusal, ...]:
    """Let cards draw by the kernel if it is right on `device`; why not, if it is refused.

    The last call holds for all models of a process. `afresh`: whatever earlier trials said.
    """
    if device.type != "cuda":
        return ()
    trial = draw_trial(vocab_size)
    verdict = tried(device, [[trial]], afresh=afresh)[trial]
    if not verdict.is_right:
        ON_CARDS.pop(TOP_P_DRAW, None)
        found = refusal(TOP_P_DRAW, verdict.reason)
        log_refusal(_log, found)
        return (found,)
    from qserve.engines.transformers.worker.sampling.triton_nucleus import draw_by_mass

    ON_CARDS[TOP_P_DRAW] = draw_by_mass
    return ()


def draw_trial(vocab_size: int) -> Trial:
    """Of the kernel, over so many tokens."""
    return Trial.of(TOP_P_DRAW, f"{__name__}:try_draw", vocab_size=vocab_size)


def try_draw(device: str, *, name: str, vocab_size: int) -> None:
    """Raises TrialRefused where the kernel draws other tokens than a sort, and what it raises."""
    from qserve.engines.transformers.worker.sampling.triton_nucleus import draw_by_mass

    generator = torch.Generator().manual_seed(0)
    asked = [
        SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p)
        for temperature in _TEMPERATURES
        for top_p, min_p in ((0.8, 0.0), (0.95, 0.02), (1.0, 0.1))
    ]
    # As of a head in bf16: many scores are equal.
    logits = (4.0 * torch.randn(len(asked), vocab_size, generator=generator)).bfloat16().float()
    scores = (logits / torch.tensor([[one.temperature] for one in asked])).to(device)
    uniforms = torch.rand(len(asked), generator=generator, dtype=torch.float64).to(device)
    truncation = Truncation.of(asked, vocab_size, scores.device)
    said = draw_by_mass(scores, truncation.log_min_p, truncation.top_p, uniforms)
    if not torch.equal(said, drawn_by_sort(scores, truncation, uniforms)):
        raise TrialRefused("it is wrong on this card")
