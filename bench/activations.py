"""What rounding activations to 8 bits gives a CPU: prompts and decoding of one model, exact and rounded in turns.

    python bench/activations.py                               # Qwen3-0.6B shape, int8 and 4 bit, 1 and 8 streams
    python bench/activations.py --quant bnb-nf4 --rounds 9
    python bench/activations.py --shape tiny                  # does it run?

One model is loaded, whose layers are told before each round what to do; medians of the rounds, and of their ratios.
What rounding costs is told by `qserve up --quant int8 --verify-quant`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.gpu_steps.running import batching, random_prompts, wave
from bench.random_checkpoint import SHAPES, write_checkpoint
from qserve.detect import detect
from qserve.hub import resolve
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.load import load
from qserve.planner import Plan, make_plan, plan_request

PROMPT_TOKENS, NEW_TOKENS = 128, 33
Rates = tuple[float, float]
"""Prompt tokens and new ones, a second."""


def plan_of(folder: Path, quant: str, streams: int) -> Plan:
    request = plan_request(
        engine="transformers", quant=quant, max_model_len=1024, max_num_seqs=streams, cpu_activations="int8"
    )
    return make_plan(resolve(str(folder)), replace(detect(), devices=()), request)


def tell(model: Any, bits: int) -> int:
    """Have activations in so many bits; returns how many layers do."""
    layers = [part for part in model.modules() if isinstance(part, CompiledLinear) and part.matrix.format != "bfloat16"]
    for layer in layers:
        layer.matrix = replace(layer.matrix, activation_bits=bits)
    return len(layers)


async def rates(model: Any, plan: Plan, streams: int, seed: int) -> Rates:
    model.set_attn_implementation("sdpa")  # as it was loaded; each batcher sets its own
    vocab = model.config.get_text_config().vocab_size
    async with batching(model, plan) as batcher:
        await wave(batcher, random_prompts(streams, 16, vocab, seed=0), 3)
        taken = await wave(batcher, random_prompts(streams, PROMPT_TOKENS, vocab, seed=seed), NEW_TOKENS)
    return streams * PROMPT_TOKENS / taken.first_s, taken.rest_tokens / taken.rest_s


def row(name: str, found: Iterable[Rates], base: Iterable[Rates]) -> str:
    both = list(zip(found, base, strict=True))
    cells = []
    for index in range(2):
        rate = statistics.median(one[index] for one, _ in both)
        ratio = statistics.median(one[index] / other[index] for one, other in both)
        cells.append(f"{rate:8.1f} ({ratio:.2f})")
    return f"{name:<28}" + "".join(f"{cell:>20}" for cell in cells)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--folder", type=Path, help="a checkpoint in place of random weights of that shape")
    parser.add_argument("--quant", nargs="+", default=["bnb-int8", "bnb-nf4"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    name = f"qserve-bench-{args.shape.replace('.', '-')}"
    folder = args.folder or write_checkpoint(Path(tempfile.gettempdir()) / name, args.shape)
    print(f"{torch.get_num_threads()} threads; tokens a second, and over exact activations")
    print(f"{'':<28}{'prompts':>20}{'decoding':>20}")
    for quant in args.quant:
        plan = plan_of(folder, quant, max(args.streams))
        model = load(folder, plan).model
        assert tell(model, 8), "no layer of it has products of ours"
        for streams in args.streams:
            found: dict[int, list[Rates]] = {16: [], 8: []}
            for seed in range(args.rounds):
                for bits in (16, 8) if seed % 2 else (8, 16):
                    tell(model, bits)
                    found[bits].append(asyncio.run(rates(model, plan, streams, seed + 1)))
            for bits, each in found.items():
                print(row(f"{quant}, {streams} streams, {bits} bit", each, found[16]), flush=True)


if __name__ == "__main__":
    main()
