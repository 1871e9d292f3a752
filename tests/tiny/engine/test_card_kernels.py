"""Every Triton kernel, compiled for cards that are not here: it compiles, spills nothing, and fits on a multiprocessor.

A kernel that only the interpreter has run may compile for no card at all. All programs on all cards take minutes
(`bench/compile_kernels.py`); here each size is compiled for one of them, and the largest of each kernel for all.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from qserve.engines.transformers.kernels.quantized_products import ROW_TILES
from qserve.engines.transformers.worker.attention import triton_decode  # noqa: F401  # lists its kernels
from qserve.engines.transformers.worker.decoding import triton_kernels  # noqa: F401
from qserve.engines.transformers.worker.sampling import triton_nucleus  # noqa: F401
from qserve.model.cuda import triton_products  # noqa: F401
from qserve.model.cuda.ahead import (
    CAPABILITIES,
    MAX_SHARED_BYTES,
    Program,
    compile_for,
    known_specs,
    program_of,
    programs_of,
)
from qserve.model.cuda.kernels import KERNELS, Launch, Sizes, launches_of
from qserve.model.fp8 import triton_experts, triton_product  # noqa: F401

ROOT = Path(__file__).parents[3]
PRODUCTS = ("int8_product", "four_bit_product", "fp8_product", "fp8_experts")
# Of 65,536 that a multiprocessor has: two programs of a product run beside each other, of int8 three; of experts in
# fp8 two of up to 32 rows.
MOST_REGISTERS = {
    "int8_product": 168,
    "four_bit_product": 208,
    "fp8_product": 168,
    "fp8_experts": 200,
    "add_rms_norm": 64,
    "rotate_and_store": 64,
    "silu_and_multiply": 64,
    "divide_keys": 128,
    "attend_parts": 168,
    "attend_parts_by_head": 96,
    "combine_parts": 128,
    "count_scores": 64,
    "gather_likeliest": 128,
    "draw_by_mass": 64,
}
# 16 bit on matrix units alone.
_ONLY_16_BIT = ("attend_parts",)
_COPIED = re.compile(r"cp\.async\.c[ag]\.shared\.global[^;]*?, (0x\w+|\d+),")  # bytes that are copied ahead
_PACKED = ("int8_product", "four_bit_product")
_SMALL_CHANGES = ("has_bias", "is_nested", "experts_block")

pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")


@triton.jit  # type: ignore[untyped-decorator]
def _planted(gate, up, out, width, gate_stride, up_stride, block: tl.constexpr):  # type: ignore[no-untyped-def]
    places = tl.arange(0, block)
    if tl.program_id(0) < width:
        values = tl.load(gate + places)
        dtype = values.dtype
    else:
        values = tl.load(up + places)
        dtype = values.dtype
    tl.store(out + places, values.to(dtype))


@cache
def programs(name: str, dtype: torch.dtype = torch.bfloat16) -> list[Program]:
    """Of all known models, the largest first."""
    found = programs_of(KERNELS[name], known_specs(), [dtype])
    sizes = {program: [value for _, value in program.constants if value is not None] for program in found}
    return sorted(found, key=lambda program: sizes[program], reverse=True)


def one_of_each_size(name: str) -> list[Program]:
    """Where only a bias or the form of scales differs, now the one and now the other."""
    by_size: dict[tuple[Any, ...], list[Program]] = {}
    for program in programs(name):
        size = tuple((key, value) for key, value in program.constants if key not in _SMALL_CHANGES)
        by_size.setdefault((*size, program.aligned if name not in PRODUCTS else ()), []).append(program)
    return [some[index % len(some)] for index, some in enumerate(by_size.values())]


def cases() -> Iterator[tuple[str, Program, int]]:
    capabilities = cycle(CAPABILITIES)
    for name in KERNELS:
        sizes = one_of_each_size(name)
        yield from ((name, sizes[0], capability) for capability in CAPABILITIES)
        yield from ((name, program, next(capabilities)) for program in sizes[1:])
        if name not in (*PRODUCTS, *_ONLY_16_BIT):
            yield name, programs(name, torch.float32)[0], 90


@pytest.mark.parametrize(
    ("name", "program", "capability"), [pytest.param(*case, id=f"{case[2]}-{case[1]}") for case in cases()]
)
def test_it_compiles_and_fits(name: str, program: Program, capability: int) -> None:
    made = compile_for(program, KERNELS[name].function, capability)
    assert made.stack_bytes == 0
    assert 0 < made.registers <= MOST_REGISTERS[name]
    assert made.shared_bytes <= min(MAX_SHARED_BYTES.values())  # one choice of sizes serves all cards
    by_matrix_units = name in (*PRODUCTS, *_ONLY_16_BIT) and ("tile", 1) not in program.constants
    if by_matrix_units:  # and loads are launched ahead of products
        assert "mma" in made.ptx and "cp.async" in made.ptx
    if name in _PACKED:  # whatever the rows: 16 bytes at once of rows and of what is packed, four for scales alone
        sizes = Counter(int(size, 0) for size in _COPIED.findall(made.ptx))
        assert sizes[16] and sizes[4] <= 16, sizes


@pytest.mark.parametrize("name", _PACKED)
def test_products_of_any_number_of_rows_are_among_them(name: str) -> None:
    tiles = {dict(program.constants)["tile"] for one, program, _ in cases() if one == name}
    assert tiles == set(ROW_TILES) - ({1} if name == "four_bit_product" else set())


def test_a_kernel_is_made_by_registering_it() -> None:
    """What Triton compiles in this project is listed, or called by what is: nothing has to be remembered."""
    for path in (ROOT / "qserve").rglob("*.py"):
        if "triton" not in (text := path.read_text()):
            continue
        tree = ast.parse(text)
        made = {node.name: ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        parts = {name for name, code in made.items() if code.startswith("@triton.jit")}
        kernels = {name for name, code in made.items() if code.startswith("@card_kernel(")}
        assert kernels <= {f"_{name}" for name in KERNELS}, path
        for part in parts:
            assert any(f"{part}(" in made[name] for name in (parts | kernels) - {part}), f"{path}: {part}"


def test_every_known_size_is_among_them() -> None:
    """Head sizes, widths and experts of the table of models."""
    specs = known_specs()
    assert len(specs) > 30 and any(spec.moe for spec in specs)
    blocks = {dict(program.constants)["half_block"] for program in programs("rotate_and_store")}
    assert blocks == {1 << (spec.head_dim // 2 - 1).bit_length() for spec in specs if spec.head_dim}
    widths = {dict(program.constants)["block"] for program in programs("add_rms_norm")}
    assert widths == {1 << (spec.hidden_size - 1).bit_length() for spec in specs}
    tiles = {
        (constants["tile"], constants["block"])
        for program in programs("four_bit_product")
        if (constants := dict(program.constants))
    }
    assert tiles == {(tile, block) for tile in (16, 32, 64) for block in (16, 32, 64)}


def test_the_number_of_rows_compiles_nothing_anew() -> None:
    """Batches grow and shrink from step to step: a program for each tile of rows is all there is."""
    sizes = Sizes(known_specs()[0], torch.bfloat16, 132)
    launches = list(launches_of(KERNELS["int8_product"], sizes))
    other = [Launch(one.kernel, {**one.arguments, "num_rows": 7}, one.options) for one in launches]
    assert {program_of(one) for one in launches} == {program_of(one) for one in other}


def test_parts_of_a_weight_compile_nothing_anew() -> None:
    """Prompts of few tokens ask for them, at addresses of scales that 16 need not divide, and steps for the whole."""
    sizes = Sizes(known_specs()[0], torch.bfloat16, 132)
    launches = list(launches_of(KERNELS["four_bit_product"], sizes))
    starts = {"second_start": 1, "third_start": 48}
    parted = {program_of(Launch(one.kernel, {**one.arguments, **starts}, one.options)) for one in launches}
    assert parted == {program_of(one) for one in launches}
    assert not {"nested_scales", "offsets"} & set().union(*(one.aligned for one in parted))
    assert not any("scales" in one.aligned for one in programs("fp8_product"))


def test_what_compiles_for_no_card_is_seen() -> None:
    """The interpreter runs this; Triton refuses a dtype that both branches of a run-time `if` assign."""
    launch = next(launches_of(KERNELS["silu_and_multiply"], Sizes(known_specs()[0], torch.bfloat16, 132)))
    program = program_of(launch)
    with pytest.raises(Exception, match="dtype"):
        compile_for(program, _planted, 90)


def test_what_spills_is_seen() -> None:
    program = programs("rotate_and_store")[0]
    starved = Program(
        program.kernel, program.signature, program.constants, program.aligned, (("maxnreg", 24), ("num_warps", 1))
    )
    assert compile_for(starved, KERNELS["rotate_and_store"].function, 90).stack_bytes > 0
