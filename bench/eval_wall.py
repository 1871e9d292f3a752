"""`qserve eval` against a served demo and lm-eval's own `hf` in one process: wall time, accuracies, log-likelihoods.

    python -m bench.eval_wall                        # float32 and the suite offline, `hf` at batch sizes 8, 32, 64
    python -m bench.eval_wall --dtype bfloat16 --engine vllm

Whole commands are timed, imports and all, one after the other on the same machine in one run; the server runs already,
as it does for a user who evaluates what is served. `hf` is taken at the batch size at which it is fastest.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qserve.demo import chat_model_path
from qserve.evaluation.comparison.diff import compare
from qserve.evaluation.results import EvalResult

EVALS = Path(__file__).parents[1] / "evals"
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}


@contextlib.contextmanager
def served(folder: Path, dtype: str, engine: str) -> Iterator[str]:
    """`qserve up --model demo`: its URL."""
    ready = folder / "ready.json"
    command = [
        sys.executable,
        "-m",
        "qserve.cli.child",
        str(os.getpid()),
        "up",
        "--model",
        "demo",
        "--engine",
        engine,
        "--dtype",
        dtype,
        "--prompt-logprobs",
        "--port",
        "0",
        "--state-dir",
        str(folder),
        "--ready-file",
        str(ready),
        *(["--enforce-eager", "--kv-cache-memory-bytes", "128MiB"] if engine == "vllm" else []),
    ]
    with (folder / "up.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True)
    try:
        while not ready.is_file():
            if process.poll() is not None:
                sys.exit((folder / "up.log").read_text())
            time.sleep(0.1)
        yield json.loads(ready.read_text())["url"]
    finally:
        process.terminate()
        process.wait()


def over_http(folder: Path, url: str) -> tuple[float, EvalResult]:
    """Seconds of the whole command, and its result."""
    command = [sys.executable, "-m", "qserve", "eval", "--suite", "offline", "--url", url]
    return timed([*command, "--state-dir", str(folder), "--out", str(folder / "over-http")]), EvalResult.load(
        folder / "over-http"
    )


def in_process(folder: Path, dtype: str, batch_size: int) -> tuple[float, EvalResult]:
    """The same of `lm_eval run --model hf`; its softmax in float32, or it would round log-probabilities to bf16."""
    out = folder / f"hf-{batch_size}"
    command = [
        sys.executable,
        "-m",
        "lm_eval",
        "run",
        "--model",
        "hf",
        "--include_path",
        str(EVALS),
        "--tasks",
        "qserve_demo",
        "--device",
        "cpu",
        "--batch_size",
        str(batch_size),
        "--output_path",
        str(out),
        "--log_samples",
        "--model_args",
        f"pretrained={chat_model_path()},dtype={dtype},softmax_dtype=float32",
    ]
    seconds = timed(command)
    (results,) = out.rglob("results_*.json")
    samples: dict[str, list[Any]] = {}
    for file in out.rglob("samples_*.jsonl"):
        task = file.name.removeprefix("samples_").rpartition("_")[0]
        samples[task] = [json.loads(line) for line in file.read_text().splitlines()]
    return seconds, EvalResult({}, {**json.loads(results.read_text()), "samples": samples})


def timed(command: list[str]) -> float:
    """Seconds until it is done; ends the benchmark with its output when it fails."""
    began = time.monotonic()
    done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-3000:]}")
    return time.monotonic() - began


def plain(result: EvalResult) -> EvalResult:
    """lm-eval's files hold numbers as text; the answers of choices as it had them in memory."""
    samples = {
        task: [{**one, "filtered_resps": _read(one)} for one in ones]
        for task, ones in result.lm_eval["samples"].items()
    }
    return EvalResult(result.about, {**result.lm_eval, "samples": samples})


def _read(sample: dict[str, Any]) -> list[Any]:
    def number(value: Any) -> Any:
        try:
            return float(value)
        except (TypeError, ValueError):
            return value

    if "exact_match" in sample:
        return list(sample["filtered_resps"])
    return [[number(a) for a in one] if isinstance(one, list) else number(one) for one in sample["filtered_resps"]]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--engine", default="transformers", choices=["transformers", "vllm"])
    parser.add_argument("--batch-sizes", default="8,32,64")
    parser.add_argument("--rounds", type=int, default=2, help="of `qserve eval`; the fastest counts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with served(folder, args.dtype, args.engine) as url:
            ours = min((over_http(folder, url) for _ in range(args.rounds)), key=lambda one: one[0])
        theirs = {int(size): in_process(folder, args.dtype, int(size)) for size in args.batch_sizes.split(",")}
    best = min(theirs, key=lambda size: theirs[size][0])
    inside = ours[1].about["seconds"]
    print(f"{args.engine}, {args.dtype}: `qserve eval --suite offline` {ours[0]:.1f} s ({inside:.1f} s in lm-eval)")
    for size, (seconds, _) in theirs.items():
        print(f"lm-eval's hf, batch size {size}: {seconds:.1f} s")
    print(f"ratio to hf at its best, batch size {best}: {ours[0] / theirs[best][0]:.2f}")
    for diff in compare(plain(theirs[best][1]), plain(ours[1])):
        print(
            f"{diff.task}: {diff.metric} {diff.before:.4f} in process, {diff.after:.4f} served, {len(diff.flips)} of "
            f"{diff.num_items} flipped" + (f"; {diff.drift}" if diff.drift else "")
        )


if __name__ == "__main__":
    main()
