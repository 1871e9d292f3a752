"""Kernels for cards are compared with torch's operations on the card at hand before they are trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.engines.transformers.worker.decoding.operations import PLAIN
from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = ["check_operation", "operation_trials", "triton_kernels", "try_operation"]

# Of values of about one: bf16 rounds to 1/256.
_TOLERANCE = 0.03


def operation_trials(heads: Heads, width: int) -> list[Trial]:
    """Of each kernel that takes the place of small operations, for such layers."""
    return [Trial.of(name, f"{__name__}:try_operation", width=width, **heads.to_json()) for name in PLAIN]


def try_operation(device: str, *, name: str, width: int, **heads: Any) -> None:
    """Raises where Triton's kernel `name` is not there, does not compile, or is not right on `device`."""
    check_operation(name, triton_kernels()[name], torch.device(device), Heads.from_json(heads), width)


def triton_kernels() -> Mapping[str, Callable[..., Any]]:
    """By the names of `PLAIN`. Raises where there is no Triton, or one that can't be imported."""
    from qserve.engines.transformers.worker.decoding import triton_kernels as ours

    return {name: getattr(ours, name) for name in PLAIN}


def check_operation(name: str, kernel: Callable[..., Any], device: torch.device, heads: Heads, width: int) -> None:
    """Raises TrialRefused where `kernel` does something else than torch's small operations, and what it raises."""
    for of, arguments in _cases(device, heads, width):
        if of == name and not _same(kernel, PLAIN[name], arguments):
            raise TrialRefused("it is wrong on this card")


def _cases(device: torch.device, heads: Heads, width: int) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """An operation's name and what it is tried on."""
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, heads.dtype)

    tokens, rows = 3, 40
    cos, sin = (torch.cat([some(tokens, heads.size // 2)] * 2, dim=-1) for _ in range(2))
    write_index = torch.tensor([33, 2, 17], device=device)
    yield "add_rms_norm", (some(tokens, width), some(tokens, width), some(width), 1e-6)
    yield "add_rms_norm", (some(tokens, width), None, some(width), 1e-6)
    yield "silu_and_multiply", (some(tokens, 3 * width), some(tokens, 3 * width))
    for weights in ((some(heads.size), some(heads.size)), (None, None)):
        yield (
            "rotate_and_store",
            (
                some(tokens, heads.num, heads.size),
                some(tokens, heads.num_of_keys, heads.size),
                some(tokens, heads.num_of_keys, heads.size),
                *weights,
                1e-6,
                cos,
                sin,
                some(rows, heads.num_of_keys, heads.size),
                some(rows, heads.num_of_keys, heads.size),
                write_index,
            ),
        )


def _same(tried: Callable[..., Any], plain: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """The answers and what was written to."""
    again = tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in arguments)
    said = [tried(*arguments), *arguments]
    meant = [plain(*again), *again]
    return all(
        torch.allclose(one.float(), other.float(), atol=_TOLERANCE, rtol=_TOLERANCE)
        for one, other in zip(said, meant, strict=True)
        if isinstance(one, torch.Tensor)
    )
