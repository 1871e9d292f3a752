"""What a decoding step on a CPU costs beside its products: by the library's steps, and in runs of our own, in turns.

    python bench/decode_runs.py                              # 28 layers, 152k tokens, one and eight streams: a minute
    python bench/decode_runs.py --layers 4 --vocab 1000 --rounds 1 --new-tokens 20

A model whose layers are so narrow that its products take next to nothing, with the layers and the vocabulary of a
Qwen3-0.6B, on one thread: what is left of a step is scheduling, lists, calls, logits and the draw. Milliseconds of
processor time a step, medians of the rounds, and of the ratios within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.gpu_steps.running import random_prompts, wave
from qserve.engines.transformers.worker.batching import paged
from qserve.engines.transformers.worker.batching.batcher import BatchLimits
from qserve.model import packed_linear

_NARROW = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}


def model_of(layers: int, vocab: int) -> Any:
    """Packed for our products, as small as it is."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**_NARROW, num_hidden_layers=layers, vocab_size=vocab)).bfloat16().eval()
    with mock.patch.object(packed_linear, "_WORTH_PACKING_BYTES", 0):
        packed_linear.pack_linears(model)
    return model


@contextmanager
def by_the_library() -> Iterator[None]:
    """Within it, batchers that start take the library's steps, through the same layers."""
    original = paged.compile_steps

    def without_runs(*of: Any) -> Any:
        made = original(*of)
        return None if made is None else replace(made, layers=None)

    with mock.patch.object(paged, "compile_steps", without_runs):
        yield


async def milliseconds_a_step(model: Any, streams: int, new_tokens: int, seed: int) -> float:
    model.set_attn_implementation("sdpa")  # as it was loaded; each batcher sets its own
    limits = BatchLimits(kv_cache_tokens=16384, max_num_seqs=16, max_num_batched_tokens=512)
    batcher = paged.PagedBatcher(model, asyncio.get_running_loop(), limits)
    batcher.start(on_death=lambda error: None)
    try:
        vocab = model.config.vocab_size
        await wave(batcher, random_prompts(streams, 32, vocab, seed=0), 5)
        # Reading prompts is in both: taken away by a wave that does little else.
        spent = []
        for tokens in (2, new_tokens + 2):
            start = time.process_time()
            await wave(batcher, random_prompts(streams, 32, vocab, seed=seed + tokens), tokens)
            spent.append(time.process_time() - start)
    finally:
        batcher.stop()
    return 1000 * (spent[1] - spent[0]) / new_tokens


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(args.layers, args.vocab)
    print(f"{'streams':>8}{'library, ms':>14}{'runs, ms':>12}{'ratio':>8}")
    for streams in args.streams:
        found = []
        for seed in range(1, args.rounds + 1):
            with by_the_library():
                theirs = asyncio.run(milliseconds_a_step(model, streams, args.new_tokens, seed))
            found.append((theirs, asyncio.run(milliseconds_a_step(model, streams, args.new_tokens, seed))))
        theirs, ours = (statistics.median(one[place] for one in found) for place in range(2))
        ratio = statistics.median(one[0] / one[1] for one in found)
        print(f"{streams:>8}{theirs:>14.2f}{ours:>12.2f}{ratio:>8.2f}", flush=True)


if __name__ == "__main__":
    main()
