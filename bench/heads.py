"""The head of a language model alone: whole in bf16, and with a shortlist before it, in turns on the same states.

    python bench/heads.py                                    # Qwen3-0.6B's shape, 1 to 8 rows, Gaussian weights
    python bench/heads.py --rows 4 8 --wanted 20 --rounds 51
    python bench/heads.py --vocab 4096 --hidden 256          # does it run?

A round takes both ways in turns, and ratios are those within a round; medians, and the middle half of the rounds.
Gaussian weights are the worst case: their logits lie close together, so many panels are read. `panels` are those that
the shortlist leaves, of all rows together. Rounds in which others computed are thrown away (--most-busy).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.machine_load import OthersLoad
from qserve.model.cpu import shortlist
from qserve.model.cpu.matrix import bfloat16_matrix, use_own_threads

Endpoint = Callable[[torch.Tensor], torch.Tensor]


def head_of(vocab: int, hidden: int) -> shortlist.ShortlistHead:
    weight = torch.randn(vocab, hidden, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    matrix = bfloat16_matrix(weight)
    made = None if matrix is None else shortlist.ShortlistHead.of(matrix, weight)
    assert made is not None, "this shape has no products of ours"
    return made


def seconds(way: Endpoint, states: torch.Tensor) -> float:
    start = time.perf_counter()
    way(states)
    return time.perf_counter() - start


def rounds_of(ways: dict[str, Endpoint], rows: int, hidden: int, args: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of each way, medians of a round; rounds that others disturbed are left out, and the first one."""
    found = []
    for index in range(args.rounds + 1):
        states = torch.randn(rows, hidden).bfloat16()
        order = list(ways) if index % 2 else list(ways)[::-1]
        others = OthersLoad()
        taken = [{name: seconds(ways[name], states) for name in order} for _ in range(args.repeat)]
        if index and others.share <= args.most_busy:
            found.append({name: statistics.median(one[name] for one in taken) for name in ways})
    return found


def row(rows: int, found: list[dict[str, float]], panels: int) -> str:
    whole, short = ([1000 * one[name] for one in found] for name in ("whole", "shortlist"))
    ratios = [one["whole"] / one["shortlist"] for one in found]
    low, _, high = statistics.quantiles(ratios, n=4)
    return (
        f"{rows:>5}{statistics.median(whole):>12.2f}{statistics.median(short):>12.2f}"
        f"{statistics.median(ratios):>10.2f}  ({low:.2f} to {high:.2f}){panels:>9}{len(found):>9}"
    )


@torch.inference_mode()
def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--wanted", type=int, default=1, help="likeliest tokens of each row: 1 is greedy")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--repeat", type=int, default=20, help="times in a round, one way after the other")
    parser.add_argument("--most-busy", type=float, default=0.1)
    args = parser.parse_args()
    use_own_threads()
    torch.set_num_threads(1)  # as in a step: what torch computes beside the products is small
    head = head_of(args.vocab, args.hidden)
    shortlist.SHORTLIST_ROWS = max(args.rows)

    def short(states: torch.Tensor) -> torch.Tensor:
        head.num_wanted = args.wanted
        try:
            return head(states)
        finally:
            head.num_wanted = None

    print(f"head [{args.vocab}, {args.hidden}], the {args.wanted} likeliest of each row; ms")
    print(f"{'rows':>5}{'whole':>12}{'shortlist':>12}{'ratio':>10}{'':<16}{'panels':>9}{'rounds':>9}")
    for rows in args.rows:
        found = rounds_of({"whole": head, "shortlist": short}, rows, args.hidden, args)
        panels = len(head._chosen(torch.randn(rows, args.hidden).bfloat16(), args.wanted))
        if len(found) < 2:
            print(f"{rows:>5}  others computed in all rounds but {len(found)}: try again, or --most-busy 1")
            continue
        print(row(rows, found, panels), flush=True)


if __name__ == "__main__":
    main()
