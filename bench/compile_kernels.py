"""Compiles every Triton kernel for cards that are not here, at the sizes of all known models: no card is needed.

    python bench/compile_kernels.py                 # bf16 and fp16, six kinds of card; 10 minutes on two cores
    python bench/compile_kernels.py --capability 90 --dtype bfloat16 --only rotate_and_store

Prints, by kernel and compute capability, the most that one of its programs takes: registers of a thread, bytes that it
spills, and shared memory. Exit status: 1 where one does not compile, spills, or takes more than such a card has.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch  # after the path
import triton  # type: ignore[import-untyped]

from qserve.engines.transformers.worker.attention import triton_decode  # noqa: F401  # lists its kernels
from qserve.engines.transformers.worker.decoding import triton_kernels  # noqa: F401
from qserve.engines.transformers.worker.sampling import triton_nucleus  # noqa: F401
from qserve.model.cuda import triton_products  # noqa: F401
from qserve.model.cuda.ahead import CAPABILITIES, MAX_SHARED_BYTES, Program, compile_for, known_specs, programs_of
from qserve.model.cuda.kernels import KERNELS
from qserve.model.fp8 import triton_experts, triton_product  # noqa: F401


@dataclass(frozen=True)
class Row:
    """`wrong` is empty where a program is well."""

    kernel: str
    capability: int
    program: str
    wrong: str = ""
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capability", type=int, nargs="+", default=CAPABILITIES)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float16"])
    parser.add_argument("--only", nargs="+", choices=sorted(KERNELS), default=sorted(KERNELS), help="these kernels")
    args = parser.parse_args()
    began_s = time.monotonic()
    with ProcessPoolExecutor() as pool:
        asked = [(name, capability, args.dtype) for name in args.only for capability in args.capability]
        rows = [row for some in pool.map(_compile, asked) for row in some]
    _print(rows)
    print(f"\n{len(rows)} programs, Triton {triton.__version__}, {time.monotonic() - began_s:.0f} s")
    return 1 if any(row.wrong for row in rows) else 0


def _compile(asked: tuple[str, int, list[str]]) -> list[Row]:
    name, capability, dtypes = asked
    warnings.filterwarnings("ignore", message="TRITON_DEFAULT_FP_FUSION")
    programs = programs_of(KERNELS[name], known_specs(), [getattr(torch, dtype) for dtype in dtypes])
    return [_row(program, function, capability) for program, function in programs.items()]


def _row(program: Program, function: Any, capability: int) -> Row:
    try:
        made = compile_for(program, function, capability)
    except Exception as error:
        return Row(program.kernel, capability, str(program), str(error).strip().splitlines()[-1])
    wrong = f"spills {made.stack_bytes} bytes" if made.stack_bytes else ""
    if made.shared_bytes > MAX_SHARED_BYTES[capability]:
        wrong = f"takes {made.shared_bytes} bytes of shared memory"
    return Row(program.kernel, capability, str(program), wrong, made.registers, made.stack_bytes, made.shared_bytes)


def _print(rows: list[Row]) -> None:
    print(
        "| kernel | compute capability | programs | registers | spilled bytes | shared KiB |\n|---|---|---|---|---|---|"
    )
    for kernel, capability in dict.fromkeys((row.kernel, row.capability) for row in rows):
        some = [row for row in rows if (row.kernel, row.capability) == (kernel, capability)]
        registers, stack = max(row.registers for row in some), max(row.stack_bytes for row in some)
        shared = max(row.shared_bytes for row in some) / 1024
        shown = f"{capability // 10}.{capability % 10}"
        print(f"| {kernel} | {shown} | {len(some)} | {registers} | {stack} | {shared:.1f} |")
    for row in rows:
        if row.wrong:
            print(f"WRONG: {row.capability}, {row.program}: {row.wrong}")


if __name__ == "__main__":
    sys.exit(main())
