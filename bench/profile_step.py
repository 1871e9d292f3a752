"""Where the time of a step goes: the paged batcher over a random checkpoint, under torch's profiler.

    python bench/profile_step.py                     # Qwen3-0.6B shape, bf16, 8 streams, prompts of 128 tokens
    python bench/profile_step.py --shape tiny        # does it run?

Prints the share of each kind of work in decoding steps and in the steps that read prompts. The profiler itself costs a
few per cent, most of all where operations are small.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile, record_function

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.gpu_steps.running import batching, random_prompts, wave
from bench.random_checkpoint import SHAPES, write_checkpoint
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.model.cpu import kernels, layers, matrix
from qserve.model.load import load
from qserve.planner import Plan, PlanRequest, make_plan

PROMPT_TOKENS = 128
_COMPILED = "compiled: "
# First match decides. Only operations that call no other are counted, so nothing counts twice.
KINDS = (
    ("compiled: attention over pages and prompts", f"^{_COMPILED}attend"),
    ("compiled: whole layers", f"^{_COMPILED}whole"),
    ("compiled: products (the head)", f"^{_COMPILED}product"),
    ("compiled: norms, SiLU, rotary, residuals", f"^{_COMPILED}"),
    ("packed linear layers", r"mkldnn::_linear_pointwise"),
    ("plain linear layers (the tied head)", r"^aten::(mm|addmm|bmm|linear|mkldnn_linear|_mkldnn_linear|mv)"),
    ("attention", r"scaled_dot_product|flash_attention|baddbmm|softmax"),
    ("cache: gathering and writing", r"index_select|index_copy|^aten::index|gather|scatter"),
    ("copies and layout", r"copy_|contiguous|clone|^aten::cat|_to_copy|reshape"),
    ("element by element (norms, SiLU, rotary, residuals)", r"mul|add|rsqrt|pow|mean|silu|neg|sub|cos|sin|where|fill"),
)


def plan_of(folder: Path, streams: int) -> Plan:
    pages = 8 * 1024**3
    machine = Hardware((), pages, pages, torch.get_num_threads())
    request = PlanRequest(engine="transformers", quant="bf16", max_model_len=1024, max_num_seqs=streams)
    return make_plan(resolve(str(folder)), machine, request)


async def profiled(model: Any, plan: Plan, streams: int, new_tokens: int) -> tuple[Any, int, float]:
    """(profile, decoding steps, their seconds); with one new token the profile is of the prompts."""
    vocab = model.config.get_text_config().vocab_size
    async with batching(model, plan) as batcher:
        await wave(batcher, random_prompts(streams, PROMPT_TOKENS, vocab, seed=1), 3)
        # The batcher generates in a thread of its own, which the profiler leaves out unless told.
        threads = _ExperimentalConfig(profile_all_threads=True)
        with profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as recorded:
            taken = await wave(batcher, random_prompts(streams, PROMPT_TOKENS, vocab, seed=2), new_tokens)
    seconds = taken.rest_s if new_tokens > 1 else taken.first_s
    return recorded, max(1, taken.rest_tokens // streams), seconds


def annotate() -> None:
    """Compiled kernels are no operations of torch's: without a name the profiler does not see them."""
    for name in ("add_rms_norm", "norm_and_rotate", "silu_and_multiply", "attend", "attend_pages"):
        setattr(kernels, name, record_function(_COMPILED + name)(getattr(kernels, name)))
    layers._call = record_function(_COMPILED + "whole layers")(layers._call)
    matrix.Matrix.product = record_function(_COMPILED + "product")(matrix.Matrix.product)


def by_kind(recorded: Any) -> Counter[str]:
    """Microseconds of each kind of work, by the time that an operation spends itself."""
    spent: Counter[str] = Counter()
    for event in recorded.key_averages():
        kind = next((name for name, pattern in KINDS if re.search(pattern, event.key)), "all else")
        spent[kind] += event.self_cpu_time_total
    return spent


def show(title: str, spent: Counter[str], steps: int) -> None:
    total = sum(spent.values())
    print(f"\n{title}\n\n| kind of work | ms a step | share |\n|---|---|---|")
    for kind, microseconds in spent.most_common():
        print(f"| {kind} | {microseconds / 1000 / steps:.1f} | {100 * microseconds / total:.0f} % |")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=17)
    args = parser.parse_args()
    folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-bench-{args.shape.replace('.', '-')}", args.shape)
    plan = plan_of(folder, args.streams)
    model = load(folder, plan).model
    annotate()
    prompts, _, prompts_s = asyncio.run(profiled(model, plan, args.streams, 1))
    model.set_attn_implementation("sdpa")  # as it was loaded; each batcher sets its own
    both, steps, decode_s = asyncio.run(profiled(model, plan, args.streams, args.new_tokens))
    decoding = by_kind(both)
    decoding.subtract(by_kind(prompts))
    show(f"Prompts: {args.streams} × {PROMPT_TOKENS} tokens in {prompts_s:.2f} s", by_kind(prompts), 1)
    title = f"Decoding: {args.streams} streams, {1000 * decode_s / steps:.0f} ms a step under the profiler"
    show(title, Counter({kind: max(0, spent) for kind, spent in decoding.items()}), steps)


if __name__ == "__main__":
    main()
