"""Causal attention over texts that lie end to end in a row, one call for all: torch's flash-attention with bounds.

Without it each text is a call of SDPA and a copy of what it says (`reward/scoring/attention.py`). As other kernels it
is tried on the card at hand before it runs.
"""

from __future__ import annotations

import inspect
import logging
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from qserve.engines.transformers.kernels.attention_kernels import TORCH_VARLEN, kernel_candidates
from qserve.engines.transformers.kernels.refusals import TEXT_ATTENTION, Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.model.sdpa import causal_prompt
from qserve.model.trials.ask import tried
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = ["attend_texts", "refused_texts", "text_trials", "try_texts"]

_log = logging.getLogger("qserve.worker")
# Of values of about one: bf16 rounds to 1/256.
_TOLERANCE = 0.03
_LENGTHS = (33, 1, 70, 7)


def attend_texts(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scaling: float | None,
) -> torch.Tensor:
    """Each token sees its own text up to itself. The answer is [1, tokens, heads, head_dim].

    `query` [1, heads, tokens, head_dim], keys and values as it with fewer heads; `bounds` int32 [texts + 1] on their
    device, where each text begins and the last one ends; `longest` of them in tokens; `scaling` None is 1/√head_dim.
    """
    from torch.nn.attention import varlen  # takes seconds, and a CPU has no use for it

    kernel: Any = varlen.varlen_attn
    states = (one[0].transpose(0, 1) for one in (query, key, value))
    named = {"scale": scaling, "window_size": (-1, 0), **_for_fewer_heads(kernel)}
    mixed = kernel(*states, bounds, bounds, longest, longest, **named)
    assert isinstance(mixed, torch.Tensor)
    return mixed[None]


@cache
def _for_fewer_heads(kernel: Any) -> dict[str, bool]:
    """Releases of torch without the argument take fewer heads of keys as they are."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(kernel).parameters else {}


def text_trials(device: torch.device, heads: Heads) -> list[Trial]:
    """One where `device` is a card that the kernel is for; else none."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    found = kernel_candidates(capability, (), str(heads.dtype).removeprefix("torch."), heads.size)
    is_for_it = TORCH_VARLEN in found.names
    return [Trial.of(TEXT_ATTENTION, f"{__name__}:try_texts", **heads.to_json())] if is_for_it else []


def refused_texts(device: torch.device, heads: Heads, *, afresh: bool = False) -> Refusal | None:
    """Why `attend_texts` may not run on `device`; None where it may. Asked only where `text_trials` has one.

    `afresh`: whatever earlier trials said.
    """
    (trial,) = text_trials(device, heads)
    verdict = tried(device, [[trial]], afresh=afresh)[trial]
    if verdict.is_right:
        return None
    found = refusal(TEXT_ATTENTION, verdict.reason)
    log_refusal(_log, found)
    return found


def try_texts(device: str, *, name: str, **heads: Any) -> None:
    """Raises TrialRefused where `attend_texts` says something else than SDPA text by text, and what it raises."""
    of = Heads.from_json(heads)
    generator = torch.Generator().manual_seed(0)

    def some(num_heads: int) -> torch.Tensor:
        return torch.randn(1, num_heads, sum(_LENGTHS), of.size, generator=generator).to(device, of.dtype)

    query, key, value = some(of.num), some(of.num_of_keys), some(of.num_of_keys)
    bounds = torch.tensor([0, *_LENGTHS], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    said = attend_texts(query, key, value, bounds.to(device), max(_LENGTHS), None).float()
    for start, stop in pairwise(bounds.tolist()):
        own = [one[:, :, start:stop].float() for one in (query, key, value)]
        meant = causal_prompt(own[0], own[1], own[2], None).transpose(1, 2)
        if not torch.allclose(said[:, start:stop], meant, atol=_TOLERANCE, rtol=_TOLERANCE):
            raise TrialRefused("it is wrong on this card")
