"""What one core makes of our products: a weight that stays in its caches, in every format, exact and rounded.

    python bench/kernels.py                                  # [2048, 1024], 1, 8 and 128 rows: half a minute
    python bench/kernels.py --out 64 --width 256 --rounds 3  # does it run?
    python bench/kernels.py --against ../older --rows 1 8    # beside the C of another checkout, in turns
    CC="gcc -mno-avx512f" python bench/kernels.py            # as a processor with AVX2 gets it

Milliseconds of processor time, not of the clock, medians of rounds in turns; in brackets the share of the instructions
that the core could do in that time: 32 products of bf16 a cycle or 64 of 8 bits (two planes of exact int8 are two
products), as AVX512-BF16 and -VNNI do them. How long a cycle is is measured in each round, by a chain of additions.
With --against: how many times as fast as the other checkout's, the median of the ratios within a round.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.packed_linear import matrix_of
from qserve.detect.compiler import compiler_command
from qserve.model.cpu import build
from qserve.model.cpu import matrix as products
from qserve.model.cpu.build import library
from qserve.model.cpu.matrix import Matrix, has_int8_activations

KINDS = ("bfloat16", "int8", "int8-a8", "fp8", "nf4", "nf4-a8", "int4", "int4-a8")
_ADDITIONS = 20_000_000
_CHAIN = """long add(long times) {
    long sum = 0;
    for (long i = 0; i < times; i += 8) {
#define ONE sum += 1; __asm__ volatile("" : "+r"(sum));
        ONE ONE ONE ONE ONE ONE ONE ONE
    }
    return sum;
}"""


def chain() -> ctypes.CDLL:
    """Additions that wait for each other: one a cycle."""
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder) / "chain.c", Path(folder) / "chain.so"
        source.write_text(_CHAIN)
        command = [*(compiler_command() or "cc").split(), "-O2", "-shared", "-fPIC", str(source), "-o", str(made)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(made))


def library_of(checkout: Path) -> ctypes.CDLL:
    """The compiled products of another checkout, whose `matrix` has to be the same."""
    sources = sorted(map(str, (checkout / "qserve" / "model" / "cpu").glob("*.c")))
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "other.so"
        command = [*(compiler_command() or "cc").split(), *build._FLAGS, "-shared", *sources, "-o", str(made)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(made))


def print_ratios(other: ctypes.CDLL, matrices: dict[str, Matrix], args: argparse.Namespace) -> None:
    """Both libraries' times in turns, and how many times as fast this one is."""
    other.use_threads(ctypes.c_long(1))
    both = {"other": other, "this": library()}
    compiled = products._compiled
    for rows in args.rows:
        states = torch.randn(rows, args.width, dtype=torch.bfloat16)
        for kind, one in matrices.items():
            found: list[dict[str, float]] = []
            for _ in range(args.rounds):
                found.append({})
                for name, used in both.items():
                    products._compiled = lambda used=used: used
                    found[-1][name] = seconds(one, states, args.seconds)
            theirs, ours = (1000 * statistics.median(each[name] for each in found) for name in both)
            ratio = statistics.median(each["other"] / each["this"] for each in found)
            print(f"{kind}, {rows} rows: {theirs:.3f} ms, {ours:.3f} ms, {ratio:.2f} times as fast", flush=True)
    products._compiled = compiled


def cycles_per_s(additions: ctypes.CDLL) -> float:
    start = time.thread_time()
    additions.add(ctypes.c_long(_ADDITIONS))
    return _ADDITIONS / (time.thread_time() - start)


def products_per_cycle(kind: str) -> float:
    """Of vectors: with tiles more than all of these are reached."""
    return 64 if kind.endswith("-a8") else 32  # two planes of 8 bits, or bf16


def seconds(matrix: Matrix, states: torch.Tensor, least: float) -> float:
    """Processor time of a product; as many as take `least` seconds."""
    count, start = 0, time.thread_time()
    while (taken := time.thread_time() - start) < least:
        matrix.product(states)
        count += 1
    return taken / count


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=int, default=2048)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 128])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.05, help="of each product in a round")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    args = parser.parse_args()
    compiled = library()
    assert compiled is not None, "there is no compiler"
    compiled.use_threads(ctypes.c_long(1))
    torch.set_num_threads(1)
    additions = chain()
    kinds = [kind for kind in args.kinds if has_int8_activations() or not kind.endswith("-a8")]
    matrices = {kind: matrix_of(kind, args.width, args.out) for kind in kinds}
    if args.against is not None:
        print_ratios(library_of(args.against), matrices, args)
        return
    print(f"weight [{args.out}, {args.width}], one core, ms (share of its instructions)")
    print("| rows | " + " | ".join(kinds) + " |\n|---|" + "---|" * len(kinds))
    for rows in args.rows:
        states = torch.randn(rows, args.width, dtype=torch.bfloat16)
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for _ in range(args.rounds):
            rate = cycles_per_s(additions)
            for kind, matrix in matrices.items():
                taken = seconds(matrix, states, args.seconds)
                least = rows * args.width * args.out / products_per_cycle(kind) / rate
                found[kind].append((taken, least / taken))
        cells = [
            f"{1000 * statistics.median(one[0] for one in each):.3f} "
            f"({100 * statistics.median(one[1] for one in each):.0f} %)"
            for each in found.values()
        ]
        print(f"| {rows} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
