"""Quantizes the demo and a random checkpoint of 0.6B's shape to W4A16, and compares them with their sources.

    python bench/quantize_demo.py --out /tmp/quantized [--shape qwen3-0.6b] [--num-samples 32]

Makes the environment of llm-compressor in the usual state folder (QSERVE_STATE_DIR moves it). What a random model
answers means nothing: of it size, memory, speed and the drift of its scores count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from random_checkpoint import SHAPES, write_checkpoint

ENGINES = ("transformers", "vllm")


def qserve(*words: str) -> str:
    """What the command prints; its progress goes to the terminal."""
    print("$ qserve", *words, flush=True)
    done = subprocess.run([sys.executable, "-m", "qserve", *words], stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def quantized(model: str, out: Path, num_samples: int, max_length: int) -> Path:
    """The folder; one that is there is kept."""
    if not out.exists():
        sizes = ("--num-samples", str(num_samples), "--max-length", str(max_length))
        print(qserve("quantize", model, "--to", "w4a16", *sizes, "--out", str(out), "--json"))
    return out


def compared(model: str, made: Path, out: Path, limit: int, up_args: str) -> None:
    """The tables of both engines."""
    for engine in ENGINES:
        folder = out / f"{made.name}-on-{engine}"
        args = ("--up-args", f"--engine {engine} {up_args}".strip(), "--suite", "offline", "--limit", str(limit))
        print(qserve("compare", model, "--quants", "bf16", "--made", str(made), *args, "--out", str(folder)))
        figures = json.loads((folder / "comparison.json").read_text())
        print(json.dumps([one["load"] for one in figures["candidates"]]))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--num-samples", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--random-limit", type=int, default=4, help="items of the random checkpoint")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    compared("demo", quantized("demo", args.out / "demo-w4a16", 256, 512), args.out, args.limit, "")
    random = write_checkpoint(args.out / args.shape, args.shape)
    made = quantized(str(random), args.out / f"{args.shape}-w4a16", args.num_samples, args.max_length)
    compared(str(random), made, args.out, args.random_limit, "--max-model-len 2048")


if __name__ == "__main__":
    main()
