"""Which kernel reads keys in their pages on this card: the first that is there and gives the right answer.

Whether a package is installed and a card new enough does not say that its kernel takes tables of pages, of this size,
for these heads: releases of torch and of flash-attn differ in it. So each is tried once on a few pages, in a process of
its own (`model/trials`), and compared with torch's SDPA; one that raises, faults, hangs or is wrong is named with its
reason, and the next is tried.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch

from qserve.engines.transformers.kernels.attention_kernels import TRITON_PAGED, kernel_candidates
from qserve.engines.transformers.kernels.kv_pages import FLASH_PAGE_TOKENS, PAGE_TOKENS
from qserve.engines.transformers.kernels.refusals import PAGED_ATTENTION, Refusal, log_refusal, refusal
from qserve.engines.transformers.worker.attention import sources
from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep, gathered
from qserve.model.sdpa import causal_prompt
from qserve.model.trials.ask import tried
from qserve.model.trials.children import first_right
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = ["GATHERED", "ChosenKernel", "Heads", "choose_kernel", "is_right", "kernel_trials", "try_kernel"]

_log = logging.getLogger("qserve.worker")
GATHERED = "sdpa"
# Of values of about one: bf16 rounds to 1/256.
_TOLERANCE = 0.03


@dataclass(frozen=True)
class Heads:
    """What a kernel meets in each layer."""

    num: int
    num_of_keys: int
    size: int
    dtype: torch.dtype

    @classmethod
    def of(cls, model: Any) -> Heads:
        """Those of `model`."""
        config = model.config.get_text_config()
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads_of_keys = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        return cls(config.num_attention_heads, heads_of_keys, size, model.dtype)

    def to_json(self) -> dict[str, Any]:
        """Arguments of a trial."""
        return {**vars(self), "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Heads:
        """What `to_json` made."""
        return cls(**{**document, "dtype": getattr(torch, document["dtype"])})


@dataclass(frozen=True)
class ChosenKernel:
    """What reads pages on a device.

    Attributes:
        name: one of `engines/transformers/kernels/attention_kernels.py`, or `sdpa`; two, joined by "+", where steps of
            decoding have one and prompts another.
        read: the kernel; `gathered` where none reads pages in place.
        page_tokens: the size of pages that it reads.
        passed_over: why others were not taken, by name.
        refused: that the card refused all that could have read pages in place; empty where there were none to try.
        reads_prompts: whether `read` takes several queries of a sequence, too; elsewhere those go through SDPA, by
            lists of positions.

    """

    name: str
    read: PagedKernel
    page_tokens: int
    passed_over: dict[str, str]
    refused: tuple[Refusal, ...] = ()
    reads_prompts: bool = True

    @property
    def is_in_place(self) -> bool:
        """Whether pages are read where they lie."""
        return self.read is not gathered


def choose_kernel(device: torch.device, heads: Heads, *, afresh: bool = False) -> ChosenKernel:
    """The kernel for `device`: of those that could be right there, the first whose trial passed.

    Ours is for steps of decoding alone: of those behind it, the first that passed is taken for prompts. `afresh`:
    whatever earlier trials said.
    """
    passed_over: dict[str, str] = {}
    groups = kernel_trials(device, heads, passed_over)
    verdicts = tried(device, groups, afresh=afresh)

    def first(group: Sequence[Trial]) -> Trial | None:
        right = first_right(group, verdicts)
        before = group if right is None else group[: group.index(right)]
        passed_over.update({one.name: verdicts[one].reason for one in before})
        return right

    def read(right: Trial) -> PagedKernel:
        return next(islice(sources.found_in(device, heads.dtype)[right.name](), verdicts[right].result, None))

    right = first(groups[0])
    if right is not None and right.name != TRITON_PAGED:
        return ChosenKernel(right.name, read(right), FLASH_PAGE_TOKENS, passed_over)
    if right is not None:
        prompts = first(groups[1])
        if prompts is None:
            return ChosenKernel(right.name, read(right), PAGE_TOKENS, passed_over, reads_prompts=False)
        both = partial(_by_queries, read(right), read(prompts))
        return ChosenKernel(f"{right.name}+{prompts.name}", both, FLASH_PAGE_TOKENS, passed_over)
    reasons = [f"{one.name}: {verdicts[one].reason}" for one in groups[0] if not verdicts[one].is_absent]
    refused = (refusal(PAGED_ATTENTION, "; ".join(reasons)),) if reasons else ()
    for one in refused:
        log_refusal(_log, one)
    return ChosenKernel(GATHERED, gathered, PAGE_TOKENS, passed_over, refused, reads_prompts=False)


def _by_queries(
    decode: PagedKernel,
    prompts: PagedKernel,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    step: PageStep,
    scaling: float,
) -> torch.Tensor:
    return (decode if step.max_queries == 1 else prompts)(query, keys, values, step, scaling)


def kernel_trials(device: torch.device, heads: Heads, passed_over: dict[str, str] | None = None) -> list[list[Trial]]:
    """Of the kernels that could be right on `device`, in their order; then of those for prompts behind our own.

    `passed_over` hears why others could not.
    """
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    found = kernel_candidates(capability, sources.installed(), str(heads.dtype).removeprefix("torch."), heads.size)
    if passed_over is not None:
        passed_over.update(found.passed_over)
    of = heads.to_json()
    trials = [Trial.of(name, f"{__name__}:try_kernel", snapshots=sources.snapshots(name), **of) for name in found.names]
    behind = found.names.index(TRITON_PAGED) + 1 if TRITON_PAGED in found.names else len(trials)
    return [trials, trials[behind:]]


def try_kernel(device: str, *, name: str, snapshots: list[str], **heads: Any) -> int:
    """Which of the kernels that `name` brings is right on `device`: the first one.

    Raises TrialRefused where all are wrong, NotImplementedError where none is installed, and what a kernel raises.
    """
    place, met = torch.device(device), Heads.from_json(heads)
    decodes_alone = name == TRITON_PAGED
    pages = (PAGE_TOKENS, FLASH_PAGE_TOKENS) if decodes_alone else (FLASH_PAGE_TOKENS,)
    for index, kernel in enumerate(sources.found_in(place, met.dtype)[name]()):
        if all(is_right(kernel, place, met, size, decodes_alone=decodes_alone) for size in pages):
            return index
    raise TrialRefused("it is wrong on this card")


def is_right(
    kernel: PagedKernel, device: torch.device, heads: Heads, page_tokens: int, *, decodes_alone: bool = False
) -> bool:
    """Whether `kernel` says what torch's SDPA says: of two sequences that decode, and of a chunk beside one.

    `decodes_alone`: it takes one query of a sequence, and is not asked for more. Raises what the kernel raises.
    """
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, heads.dtype)

    keys, values = (some(10, page_tokens, heads.num_of_keys, heads.size) for _ in range(2))
    table, num_keys = [[4, 1, 9, 6, 3], [2, 5, 8, 7, 0]], [4 * page_tokens + 9, 7]
    for queries in ((1, 1), (5, 1))[: 1 if decodes_alone else 2]:
        query = some(sum(queries), heads.num, heads.size)
        step = _step_of(kernel, table, num_keys, queries, device)
        said = kernel(query, keys, values, step, heads.size**-0.5).float()
        start = 0
        for row, count in enumerate(queries):
            own = [part[table[row]].flatten(0, 1)[: num_keys[row]].transpose(0, 1)[None] for part in (keys, values)]
            part = query[start : start + count].transpose(0, 1)[None]
            meant = causal_prompt(part.float(), own[0].float(), own[1].float(), None)[0].transpose(0, 1)
            if not torch.allclose(said[start : start + count], meant, atol=_TOLERANCE, rtol=_TOLERANCE):
                return False
            start += count
    return True


def _step_of(
    kernel: PagedKernel, table: list[list[int]], num_keys: list[int], queries: tuple[int, ...], device: torch.device
) -> PageStep:
    bounds = [0, queries[0], sum(queries)]
    return PageStep(
        write_index=torch.zeros(sum(queries), dtype=torch.long, device=device),
        block_table=torch.tensor(table, dtype=torch.int32, device=device),
        num_keys=torch.tensor(num_keys, dtype=torch.int32, device=device),
        query_bounds=torch.tensor(bounds, dtype=torch.int32, device=device),
        max_queries=max(queries),
        max_keys=max(num_keys),
        kernel=kernel,
    )
