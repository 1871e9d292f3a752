"""Hybrids beside an ordinary model: its pages, their rows, and where asked for its rows and a model of experts.

    python bench/hybrid.py                     # Qwen3-0.6B shape, random weights, bf16, 1 and 8 streams
    python bench/hybrid.py --rows --streams 1 16 --rounds 5
    python bench/hybrid.py --experts --shape qwen3-85m
    python bench/hybrid.py --experts --shape qwen3-85m --alone --quant int8 4bit --library

A hybrid can only be served by rows (`engines/transformers/worker/batching/rows/batcher.py`), an ordinary model by both,
so the price of rows is measured on an ordinary one: the same model object, prompts and tokens, in turns round by round.
The hybrid is of the same width and depth, three layers of linear attention before each of full attention; so is the
model of experts. `--quant` has that one in int8 and 4 bit as well, `--library` by transformers' own modules in bf16.
Prefill is the time to the first token of the last stream, decode what follows it.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import SHAPES, write_checkpoint, write_tokenizer

sys.path.insert(0, str(Path(__file__).parents[1]))

from qserve.detect import detect
from qserve.engines.transformers.worker.batching.batcher import Batcher, BatchLimits, Sequence
from qserve.engines.transformers.worker.batching.paged import PagedBatcher
from qserve.engines.transformers.worker.batching.rows.batcher import RowBatcher
from qserve.engines.transformers.worker.sampling.params import SamplingParams
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.hub import resolve
from qserve.model.failures import SequenceFailed
from qserve.model.load import load
from qserve.model.mapped import MappedFiles
from qserve.model.packed_linear import pack_linears
from qserve.planner import PlanRequest, make_plan

PROMPT_TOKENS = 128
# Of a Qwen3.5 of about this width, as published in its config.json.
LINEAR = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
}
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4}


def loaded(folder: Path) -> Any:
    """The checkpoint as the worker loads it: linear layers packed, an embedding that the head shares in its file."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    pack_linears(model, MappedFiles.of(folder))
    return model


def library(folder: Path) -> Any:
    """The checkpoint as transformers loads it, nothing packed."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def quantized(folder: Path, quant: str) -> Any:
    """The checkpoint as a worker loads it that quantizes it."""
    write_tokenizer(folder, json.loads((folder / "config.json").read_text())["vocab_size"])
    machine = dataclasses.replace(detect(), devices=())
    return load(folder, make_plan(resolve(str(folder)), machine, PlanRequest(engine="transformers", quant=quant))).model


def write_hybrid(folder: Path, shape: str) -> Path:
    """A Qwen3.5 of the width and depth of `shape`."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    dims = SHAPES[shape]
    interval = min(4, dims["num_hidden_layers"])
    return write(folder, Qwen3_5ForCausalLM, Qwen3_5TextConfig(**dims, **LINEAR, full_attention_interval=interval))


def write_experts(folder: Path, shape: str) -> Path:
    """A Qwen3-MoE of the width and depth of `shape`, whose tokens have twice as many weights as the ordinary one's."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    dims = SHAPES[shape]
    return write(
        folder,
        Qwen3MoeForCausalLM,
        Qwen3MoeConfig(**dims, **EXPERTS, moe_intermediate_size=dims["intermediate_size"] // 2),
    )


def write(folder: Path, kind: Any, config: Any) -> Path:
    """A checkpoint with random weights in bf16; one that is there is kept."""
    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        kind(config).save_pretrained(folder)
    finally:
        torch.set_default_dtype(torch.float32)
    return folder


async def one_round(batcher: Batcher, streams: int, new_tokens: int, seed: int) -> tuple[float, float]:
    """Seconds until every stream has its first token, and from there until every one has its last."""
    torch.manual_seed(seed)
    prompts = torch.randint(0, 1000, (streams, PROMPT_TOKENS)).tolist()
    start = time.perf_counter()

    async def stream(number: int, prompt: list[int]) -> tuple[float, float]:
        sampler = SequenceSampler(SamplingParams(temperature=0.0), prompt)
        one = Sequence(f"{seed}-{number}", prompt, new_tokens, frozenset(), sampler)
        batcher.submit(one)
        times = []
        for _ in range(new_tokens):
            item = await one.outbox.get()
            if isinstance(item, SequenceFailed):
                raise item
            times.append(time.perf_counter())
        return times[0], times[-1]

    ends = await asyncio.gather(*(stream(number, prompt) for number, prompt in enumerate(prompts)))
    first, last = max(end[0] for end in ends), max(end[1] for end in ends)
    return first - start, last - first


async def measure(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Medians by 'model, batcher, streams': prefill and decode in tokens a second, and new tokens a second in all."""
    folder = args.checkpoint or Path(tempfile.gettempdir()) / f"qserve-bench-{args.shape}"
    loop = asyncio.get_running_loop()
    limits = BatchLimits(kv_cache_tokens=64 * 256, max_num_seqs=64, max_num_batched_tokens=1024)
    models: dict[str, Any] = {}
    if not args.alone:
        models["ordinary, pages"] = loaded(write_checkpoint(folder, args.shape))
        models["hybrid, rows"] = loaded(write_hybrid(folder.with_name(f"{folder.name}-hybrid"), args.shape))
    if args.rows and not args.alone:
        models["ordinary, rows"] = models["ordinary, pages"]
    if args.experts:
        of_experts = write_experts(folder.with_name(f"{folder.name}-experts"), args.shape)
        models["experts, pages"] = loaded(of_experts)
        models |= {f"experts in {quant}, pages": quantized(of_experts, quant) for quant in args.quant}
        models |= {"experts by the library, pages": library(of_experts)} if args.library else {}
    batchers: dict[str, Batcher] = {
        name: (RowBatcher if name.endswith("rows") else PagedBatcher)(model, loop, limits)
        for name, model in models.items()
    }
    for batcher in batchers.values():
        batcher.start(on_death=lambda error: sys.exit(f"a batcher died: {error}"))
    taken: dict[str, list[tuple[float, float]]] = {}
    try:
        for number in range(args.rounds + 1):  # the first warms up and does not count
            for streams in args.streams:
                for name, batcher in batchers.items():
                    seconds = await one_round(batcher, streams, args.new_tokens, seed=1000 * number + streams)
                    if number:
                        taken.setdefault(f"{name}, {streams} streams", []).append(seconds)
            print(f"round {number or 'warm-up'} done", file=sys.stderr, flush=True)
    finally:
        for batcher in batchers.values():
            batcher.stop()
    return {name: rates(seconds, name, args.new_tokens) for name, seconds in taken.items()}


def rates(seconds: list[tuple[float, float]], name: str, new_tokens: int) -> dict[str, float]:
    """Tokens a second, from the medians of the rounds."""
    streams = int(name.rsplit(", ", 1)[1].split()[0])
    prefill, decode = (statistics.median(column) for column in zip(*seconds, strict=True))
    whole = statistics.median(sum(pair) for pair in seconds)
    return {
        "prefill_tokens_per_s": streams * PROMPT_TOKENS / prefill,
        "decode_tokens_per_s": streams * (new_tokens - 1) / decode,
        "new_tokens_per_s": streams * new_tokens / whole,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", action="store_true", help="the ordinary model over rows too")
    parser.add_argument("--experts", action="store_true", help="a model of experts over pages too")
    parser.add_argument("--quant", nargs="+", default=[], help="that model in these as well: int8, 4bit")
    parser.add_argument("--library", action="store_true", help="that model by the library's own modules as well")
    parser.add_argument("--alone", action="store_true", help="without the ordinary model and the hybrid")
    parser.add_argument(
        "--checkpoint", type=Path, help="where the random checkpoint is kept [a folder in the temp dir]"
    )
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    figures = asyncio.run(measure(args))
    print(f"{'':44}{'prefill tokens/s':>18}{'decode tokens/s':>18}{'new tokens/s':>15}")
    for name, row in sorted(figures.items(), key=lambda item: item[0].rsplit(", ", 1)[::-1]):
        cells = zip(row.values(), (18, 18, 15), strict=True)
        print(f"{name:44}" + "".join(f"{value:{width}.1f}" for value, width in cells))
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
