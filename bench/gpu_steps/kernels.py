"""Each kernel of a decoding step by itself, at the sizes of a model: it compiles, it is right, it takes so long.

Bytes are the fewest that it must move: what is read once and written once. Beside them stands what the same bytes would
take at the rate of a large copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bench.gpu_steps.machine import Machine, config_of
from bench.gpu_steps.timing import microseconds
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.kernels.refusals import TOP_P_DRAW
from qserve.engines.transformers.worker.attention.kernels import Heads, choose_kernel
from qserve.engines.transformers.worker.attention.pages import PageStep
from qserve.engines.transformers.worker.decoding.choose import take_on_cards
from qserve.engines.transformers.worker.decoding.operations import PLAIN, REGISTERED
from qserve.engines.transformers.worker.sampling.draw import Truncation, drawn, drawn_by_sort
from qserve.engines.transformers.worker.sampling.nucleus import choose_draw
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.model.cuda import products
from qserve.model.cuda.weights import FourBitWeight, Int8Weight, Weight

__all__ = ["kernel_row"]

# 16 bit rounds to 1/256 of a number, or of one where it is smaller. Products are held against the largest number.
_TOLERANCE, _PRODUCT_TOLERANCE = 0.03, 0.02
# Larger than a card's cache (50 MB): what is read in turn.
_ROTATED_BYTES = 256 * 1024**2
_PAGES_OF_A_ROW_TOKENS = 576


@dataclass(frozen=True)
class Case:
    """`make` a call on memory of its own, and the same in `reference`; `moved_bytes` by one call."""

    make: Callable[[], tuple[Callable[[], Any], Callable[[], Any]]]
    moved_bytes: int
    tolerance: float
    by_largest: bool = False


def kernel_row(machine: Machine, kernel: str, model: str, rows: list[int], read_bytes_per_s: float) -> dict[str, Any]:
    """`kernel` (of order.KERNELS) with so many rows each: {"at": [figures by rows]}, wrong where any of them is."""
    spec = ModelSpec.from_config(config_of(model), model)
    refused = _refused(machine, spec).get(kernel)
    at = [
        {"rows": number, "way": way, **_figures(case, machine, read_bytes_per_s)}
        for number in rows
        for way, case in _cases(kernel, machine, spec, number)
    ]
    is_well = not refused and all(one["right"] for one in at)
    return {"at": at, "ok": is_well, **({"refused": refused} if refused else {})}


def _refused(machine: Machine, spec: ModelSpec) -> dict[str, str]:
    """Why the engine would not take a kernel of its own on this card, by name; those that it takes are registered."""
    if not machine.is_card:
        return {}
    heads = Heads(spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim, _dtype(machine))
    refused = take_on_cards(machine.device, heads, spec.hidden_size) + choose_draw(machine.device, spec.vocab_size)
    return {one.kernel: one.reason for one in refused}


def _dtype(machine: Machine) -> torch.dtype:
    return torch.bfloat16 if machine.scheme_16_bit == "bf16" else torch.float16


def _figures(case: Case, machine: Machine, read_bytes_per_s: float) -> dict[str, Any]:
    made = [case.make() for _ in range(max(1, min(8, _ROTATED_BYTES // max(1, case.moved_bytes))))]
    begun = time.perf_counter()
    call, reference = made[0]
    said = call()
    first_s = time.perf_counter() - begun  # compiles
    meant = reference()
    off, size = (said.float() - meant.float()).abs(), meant.float().abs()
    off_by = float(off.max() / size.max() if case.by_largest else (off / (1 + size)).max())
    taken = microseconds([one for one, _ in made], machine.device)
    return {
        "planned_us": case.moved_bytes / read_bytes_per_s * 1e6,
        "us": taken,
        "GB_per_s": case.moved_bytes / taken / 1000,
        "off_by": off_by,
        "right": off_by <= case.tolerance,
        "first_call_s": first_s,
    }


def _cases(kernel: str, machine: Machine, spec: ModelSpec, rows: int) -> Iterator[tuple[str, Case]]:
    dtype = _dtype(machine)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=machine.device, dtype=dtype)

    hidden, inner, heads, kv, size = (
        spec.hidden_size,
        spec.intermediate_size,
        spec.num_attention_heads,
        spec.num_key_value_heads,
        spec.head_dim,
    )
    if kernel == "add_rms_norm":
        yield (
            kernel,
            _operation(
                kernel,
                lambda: [some(rows, hidden), some(rows, hidden), some(hidden), 1e-6],
                0,
                2 * hidden * (4 * rows + 1),
            ),
        )
    elif kernel == "silu_and_multiply":
        yield kernel, _operation(kernel, lambda: [some(rows, inner), some(rows, inner)], None, 2 * 3 * rows * inner)
    elif kernel == "rotate_and_store":
        index = torch.arange(rows, device=machine.device)

        def arguments() -> list[Any]:
            angles = [torch.cat([some(rows, size // 2)] * 2, dim=-1) for _ in range(2)]
            parts = [some(rows, heads, size), some(rows, kv, size), some(rows, kv, size), some(size), some(size), 1e-6]
            return [*parts, *angles, some(rows + 8, kv, size), some(rows + 8, kv, size), index]

        moved = 2 * rows * size * (2 * heads + 4 * kv + 2)
        yield kernel, _operation(kernel, arguments, 8, moved)
        yield f"{kernel}, queries", _operation(kernel, arguments, 0, moved)
    elif kernel == TOP_P_DRAW:
        yield from _draws(machine, spec.vocab_size, rows)
    elif kernel == "attention":
        yield _attention(machine, Heads(heads, kv, size, dtype), rows, some)
    else:
        yield from _products(kernel, machine, (inner, hidden), rows, some, dtype)


def _operation(name: str, make: Callable[[], list[Any]], written: int | None, moved_bytes: int) -> Case:
    """An operation between products; `written`: the argument that it writes to and that is compared, or its answer."""

    def made() -> tuple[Callable[[], Any], Callable[[], Any]]:
        arguments = make()
        first = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]
        again = [one.clone() if isinstance(one, torch.Tensor) else one for one in arguments]

        def once(function: Callable[..., Any], given: list[Any]) -> Any:
            answer = function(*given)
            return answer if written is None or answer is not None else given[written]

        return (lambda: once(REGISTERED[name], first)), (lambda: once(PLAIN[name], again))

    return Case(made, moved_bytes, _TOLERANCE)


def _draws(machine: Machine, vocab_size: int, rows: int) -> Iterator[tuple[str, Case]]:
    """Of a nucleus of a few hundred tokens, and of one that is not gathered; the first by a sort as well."""
    for way, temperature, function in (("as it runs", 0.8, drawn), ("wide", 40.0, drawn), ("by a sort", 0.8, None)):

        def made(
            temperature: float = temperature, function: Callable[..., torch.Tensor] | None = function
        ) -> tuple[Callable[[], Any], Callable[[], Any]]:
            scores = 3.0 * torch.randn(rows, vocab_size, device=machine.device) / temperature
            asked = Truncation.of([SamplingParams(top_p=0.8)] * rows, vocab_size, machine.device)
            numbers = torch.rand(rows, device=machine.device, dtype=torch.float64)
            by_sort = partial(drawn_by_sort, scores, asked, numbers)
            return by_sort if function is None else partial(function, scores, None, asked, numbers), by_sort

        yield way, Case(made, 4 * rows * vocab_size, 0.0)


def _attention(machine: Machine, heads: Heads, rows: int, some: Callable[..., torch.Tensor]) -> tuple[str, Case]:
    chosen = choose_kernel(machine.device, heads)
    pages_of_row = -(-_PAGES_OF_A_ROW_TOKENS // chosen.page_tokens)
    table = torch.arange(rows * pages_of_row, dtype=torch.int32, device=machine.device).view(rows, pages_of_row)

    def step(kernel: Any) -> PageStep:
        return PageStep(
            write_index=torch.zeros(rows, dtype=torch.long, device=machine.device),
            block_table=table,
            num_keys=torch.full((rows,), _PAGES_OF_A_ROW_TOKENS, dtype=torch.int32, device=machine.device),
            query_bounds=torch.arange(rows + 1, dtype=torch.int32, device=machine.device),
            max_queries=1,
            max_keys=pages_of_row * chosen.page_tokens,
            kernel=kernel,
        )

    def made() -> tuple[Callable[[], Any], Callable[[], Any]]:
        shape = rows * pages_of_row, chosen.page_tokens, heads.num_of_keys, heads.size
        query, keys, values, ready = some(rows, heads.num, heads.size), some(*shape), some(*shape), step(chosen.read)
        scale = heads.size**-0.5
        return (
            lambda: chosen.read(query, keys, values, ready, scale),
            lambda: _in_float(query, keys, values, ready, scale),
        )

    moved = 2 * 2 * rows * _PAGES_OF_A_ROW_TOKENS * heads.num_of_keys * heads.size
    return f"attention by {chosen.name}", Case(made, moved, _TOLERANCE)


def _in_float(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: PageStep, scale: float
) -> torch.Tensor:
    """One query a row over its keys, in float32."""
    rows, heads, size = query.shape
    own = [part[step.block_table.long()].flatten(1, 2)[:, :_PAGES_OF_A_ROW_TOKENS].float() for part in (keys, values)]
    keys_of, values_of = (part.repeat_interleave(heads // part.shape[2], dim=2) for part in own)
    scores = torch.einsum("rhs,rkhs->rhk", query.float() * scale, keys_of).softmax(-1)
    return torch.einsum("rhk,rkhs->rhs", scores, values_of).view(rows, heads, size)


def _products(
    kind: str,
    machine: Machine,
    shape: tuple[int, int],
    rows: int,
    some: Callable[..., torch.Tensor],
    dtype: torch.dtype,
) -> Iterator[tuple[str, Case]]:
    outputs, inputs = shape
    if kind == "bf16":

        def dense() -> tuple[Callable[[], Any], Callable[[], Any]]:
            weight, states = some(outputs, inputs) / inputs**0.5, some(rows, inputs)
            return (
                lambda: torch.nn.functional.linear(states, weight),
                lambda: torch.nn.functional.linear(states.float(), weight.float()),
            )

        yield "cuBLAS" if machine.is_card else "torch", Case(dense, 2 * outputs * inputs, _PRODUCT_TOLERANCE, True)
        return
    moved = outputs * inputs if kind == "int8" else outputs * inputs * 33 // 64
    for name in _candidates(kind, rows, machine.is_card):

        def held(name: str = name) -> tuple[Callable[[], Any], Callable[[], Any]]:
            weight, states = _weight(kind, machine.device, shape), some(rows, inputs)
            reference = products.by_pieces
            return (
                lambda: products.PRODUCTS[name](states, weight, None),
                lambda: reference(states.float(), weight, None),
            )

        yield name, Case(held, moved, _PRODUCT_TOLERANCE, True)


def _candidates(kind: str, rows: int, is_card: bool) -> Iterator[str]:
    """On a CPU only what torch's operations do: Triton's and bitsandbytes' kernels are of cards."""
    if is_card:
        yield products.KERNEL
        if kind != "int8":
            yield products.LIBRARY
    yield products.BY_PIECES


def _weight(kind: str, device: torch.device, shape: tuple[int, int]) -> Weight:
    outputs, inputs = shape
    if kind == "int8":
        codes = torch.randint(-127, 128, shape, dtype=torch.int8, device=device)
        return Int8Weight(codes, torch.rand(outputs, device=device) / 1000)
    from bitsandbytes.functional import get_4bit_type

    code = get_4bit_type(kind, device=device)
    packed = torch.randint(0, 256, (outputs * inputs // 2,), dtype=torch.uint8, device=device)
    scales = torch.rand(outputs * inputs // 64, device=device) / 100
    code = torch.linspace(-1, 1, 16, device=device)
    return FourBitWeight(kind, packed, code, scales, None, 64, inputs)
