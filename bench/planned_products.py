"""What a plan takes a CPU's products for, beside what they take: measured at some numbers of rows, judged at others.

    python bench/planned_products.py                         # Qwen3-0.6B's layers: two minutes
    python bench/planned_products.py --shape tiny --seconds 0 --rounds 1

`qserve doctor --measure` takes 1, 4, 16, 64 and 256 rows of layers of its own sizes; here every linear layer of a shape
is multiplied with other numbers of rows, right after such a measurement. Each cell is planned over measured, the median
of the rounds; with exact activations first by the row that exact products have of their own, then (in brackets) by that
of rounded ones, which is what plans took before.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.packed_linear import layer_of, pass_seconds, sizes_of
from bench.random_checkpoint import SHAPES
from qserve.core.hardware import Device
from qserve.engines.transformers.cpu_rates import CpuProbe
from qserve.model.cpu.matrix import use_own_threads
from qserve.planner.speed.terms.cpu import CpuRates, cpu_card, cpu_format
from qserve.planner.speed.terms.engine_costs import engine_costs
from qserve.planner.speed.terms.kernels import gemm_us

KINDS = {
    "bfloat16": ("bf16", True),
    "int8": ("bnb-int8", True),
    "int8-a8": ("bnb-int8", False),
    "nf4": ("bnb-nf4", True),
    "nf4-a8": ("bnb-nf4", False),
}
"""By the name of bench/packed_linear.py: the scheme, and whether activations are exact."""


def planned_s(rates: CpuRates, scheme: str, *, is_exact: bool, sizes: list[tuple[int, int]], rows: int) -> float:
    costs = engine_costs("transformers-cpu")
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), rates, costs)
    weights = cpu_format(scheme, rates, costs, is_exact=is_exact)
    return sum(gemm_us(card, weights, rows, out, width) for width, out in sizes) / 1e6


def ratios(rates: CpuRates, kind: str, sizes: list[tuple[int, int]], rows: int, taken_s: float) -> tuple[float, float]:
    """Planned over measured, by the activations of `kind` and by rounded ones."""
    scheme, is_exact = KINDS[kind]
    own, rounded = (
        planned_s(rates, scheme, is_exact=exact, sizes=sizes, rows=rows) / taken_s for exact in (is_exact, False)
    )
    return own, rounded


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 8, 32, 128])
    parser.add_argument("--seconds", type=float, default=0.4, help="for each figure of the measurement")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sizes = sizes_of(args.shape)
    widths = [width for width, _ in sizes]
    use_own_threads()
    layers = {kind: [layer_of(kind, *size) for size in sizes] for kind in KINDS}
    probe = CpuProbe()
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for _ in range(args.rounds):
        rates = CpuRates.from_json(probe.all_rates(args.seconds))
        for rows in args.rows:
            for kind, each in layers.items():
                taken_s = statistics.median(pass_seconds(each, widths, rows) for _ in range(3))
                found.setdefault((rows, kind), []).append(ratios(rates, kind, sizes, rows, taken_s))
    print(f"{'rows':>5}" + "".join(f"{kind:>18}" for kind in KINDS))
    for rows in args.rows:
        cells = []
        for kind in KINDS:
            own, rounded = (statistics.median(one[place] for one in found[rows, kind]) for place in range(2))
            cells.append(f"{own:.2f} ({rounded:.2f})" if KINDS[kind][1] and kind != "bfloat16" else f"{own:.2f}")
        print(f"{rows:>5}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
