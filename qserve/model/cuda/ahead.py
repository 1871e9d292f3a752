"""Compiles kernels for cards that are not there, and says what of a card they take.

Triton brings all that this needs: its compiler, NVIDIA's assembler, and the tool that reads what was assembled.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median_low
from typing import Any

import torch
import triton  # type: ignore[import-untyped]

from qserve.core import facts
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config, known_ids
from qserve.model.cuda.kernels import CardKernel, Launch, Sizes, launches_of

__all__ = [
    "CAPABILITIES",
    "MAX_SHARED_BYTES",
    "Compiled",
    "Program",
    "compile_for",
    "known_multi_processors",
    "known_specs",
    "program_of",
    "programs_of",
]

MAX_SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Of a program, by compute capability: A100, RTX 30, RTX 40 and L40S, H100 and H200, B200, RTX 50.
Source: NVIDIA, CUDA C++ Programming Guide 13, table of technical specifications per compute capability."""

CAPABILITIES = tuple(MAX_SHARED_BYTES)
"""Those of the cards that bf16 runs on."""

_LEAST_CC = 8.0
_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.int64: "i64",
}
_ALIGNMENT = 16  # Triton compiles for pointers and numbers that it divides


@dataclass(frozen=True)
class Program:
    """What is compiled once, however many launches take it.

    Attributes:
        kernel: its name.
        signature: by argument, Triton's type of it, or `constexpr`.
        constants: by argument, numbers that are known when it is compiled.
        aligned: arguments that 16 divides.
        options: `num_warps` and `num_stages`.

    """

    kernel: str
    signature: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: frozenset[str]
    options: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value}" for name, value in self.constants)
        dtype = next((kind[1:] for _, kind in self.signature if kind in ("*bf16", "*fp16")), "fp32")
        return f"{self.kernel} {dtype} ({constants})"


@dataclass(frozen=True)
class Compiled:
    """What a program takes of a card.

    Attributes:
        registers: of a thread.
        stack_bytes: of a thread, in the card's memory: spilled registers, and arrays that have no place in them.
        shared_bytes: of a program.
        ptx: what was assembled.

    """

    registers: int
    stack_bytes: int
    shared_bytes: int
    ptx: str


def known_specs() -> tuple[ModelSpec, ...]:
    """One of each set of dimensions that the table of known models has."""
    specs = (ModelSpec.from_config(config, name) for name in known_ids() if (config := bundled_config(name)))
    return tuple({replace(spec, id=""): spec for spec in specs}.values())


@cache
def known_multi_processors() -> tuple[int, ...]:
    """Of the smallest, the middle and the largest known card: by them work is divided into programs."""
    cards = facts.load("gpus")["gpus"].values()
    counts = [int(card["sm_count"]) for card in cards if float(card.get("cc", 0)) >= _LEAST_CC]
    return tuple(sorted({min(counts), median_low(counts), max(counts)}))


def programs_of(kernel: CardKernel, specs: Iterable[ModelSpec], dtypes: Iterable[torch.dtype]) -> dict[Program, Any]:
    """All programs that services of these models launch, each with Triton's function."""
    dtypes = tuple(dtypes)
    return {
        program_of(launch): kernel.function
        for spec in specs
        for dtype in dtypes
        for multi_processors in known_multi_processors()
        for launch in launches_of(kernel, Sizes(spec, dtype, multi_processors))
    }


def compile_for(program: Program, function: Any, capability: int) -> Compiled:
    """`program` for cards of compute capability `capability` (90 is 9.0). Raises what Triton raises."""
    from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
    from triton.compiler import ASTSource  # type: ignore[import-untyped]

    places = {name: (index,) for index, name in enumerate(function.arg_names)}
    source = ASTSource(
        function,
        dict(program.signature),
        {places[name]: value for name, value in program.constants},
        {places[name]: [["tt.divisibility", _ALIGNMENT]] for name in program.aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(program.options))
    registers, stack_bytes = _resources(made.asm["cubin"])
    return Compiled(registers, stack_bytes, made.metadata.shared, made.asm["ptx"])


def program_of(launch: Launch) -> Program:
    """As Triton's launcher specializes: by dtypes, by numbers that are one, by what 16 divides."""
    signature, constants, aligned = [], [], set()
    for param in launch.kernel.function.params:
        name, value = param.name, launch.arguments[param.name]
        is_looked_at = not param.do_not_specialize
        is_number = isinstance(value, int) and is_looked_at
        is_constant = param.is_constexpr or (is_number and value == 1)
        signature.append((name, "constexpr" if is_constant else _type_of(value)))
        if is_constant:
            constants.append((name, value))
        elif (isinstance(value, torch.Tensor) and is_looked_at) or (is_number and value % _ALIGNMENT == 0):
            aligned.add(name)
    options = tuple(sorted(launch.options.items()))
    return Program(launch.kernel.name, tuple(signature), tuple(constants), frozenset(aligned), options)


def _type_of(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


def _resources(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) of a thread."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said))
    return int(found["REG"]), int(found["STACK"]) + int(found["LOCAL"])
