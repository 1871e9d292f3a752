"""Kernels, waits and Python of a decoding step on a card's path, counted without a card (bench/step_counts.py).

python bench/count_step.py                # 1, 8 and 64 rows, greedy and drawn: a Markdown table
python bench/count_step.py --names        # which operations a step of 8 rows has
python bench/count_step.py --held nf4     # with weights as bitsandbytes holds them on a card: int8, nf4, fp4
python bench/count_step.py --bytes Qwen/Qwen3-32B    # of weights that a step moves, from the shapes alone
python bench/count_step.py --texts 64     # of a layer of a reward model that reads so many texts in a row
python bench/count_step.py --models Qwen/Qwen3-8B    # kernels, waits and bytes of a step of it in bf16
python bench/count_step.py --experts      # of a layer's experts in fp8: the loop, and grouped products
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import torch

from bench.row_counts import layer_launches
from bench.step_bytes import bytes_table, step_table
from bench.step_counts import GREEDY, SAMPLED, count_steps, names_of


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--held", default="bf16", choices=["bf16", "int8", "nf4", "fp4"])
    parser.add_argument("--texts", type=int)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--bytes", metavar="MODEL", help="a model of configs/models.toml")
    parser.add_argument("--models", metavar="MODEL", nargs="+", help="models of configs/models.toml")
    args = parser.parse_args()
    if args.bytes:
        print(bytes_table(args.bytes, args.rows))
        return
    torch.set_num_threads(1)
    if args.experts:
        from bench.expert_counts import experts_table  # imports Triton

        print(experts_table(args.rows))
        return
    if args.texts:
        each, together = (layer_launches(args.texts, by_one_call=one) for one in (False, True))
        print(f"a layer of a row of {args.texts} texts: {each} launches text by text, {together} by one call")
        return
    if args.models:
        step = count_steps(8, SAMPLED, "bf16")
        beside = step.launches - 2 * step.layer_launches
        print(step_table(args.models, args.rows, step.layer_launches, beside, step.waits))
        return
    if args.names:
        for name, number in names_of(4, 8, SAMPLED, args.held).most_common():
            print(f"{number:5} {name}")
        return
    print("| rows | | kernels of a layer | kernels beside layers | waits | Python calls | Python, µs |")
    print("|---|---|---|---|---|---|---|")
    for rows in args.rows:
        for name, params in (("greedy", GREEDY), ("drawn", SAMPLED)):
            step = count_steps(rows, params, args.held)
            beside = step.launches - 2 * step.layer_launches
            print(
                f"| {rows} | {name} | {step.layer_launches:g} | {beside:g} | {step.waits:g} | {step.calls:g} "
                f"| {step.python_us:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
