"""One script for a machine with a card: is every quantization right, does memory come out as planned, how fast is it?

    python bench/gpu.py                              # all steps within 7.5 minutes; writes docs/results/gpu-CARD-DATE.*
    python bench/gpu.py --budget-s 200 --only memory
    python bench/gpu.py --device cpu --shapes tiny   # every line of it in seconds; the figures mean nothing

It needs torch, transformers and accelerate, nothing else of qserve's dependencies, no network and no weights: shapes
run on random weights, correctness on the bundled demo model. What needs a package that is missing, or more time than
is left, is skipped and named. Exit status: 0 well, or no card; 1 something is not right.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STEPS = ("quality", "offload", "memory")
# A shape takes about its weights' bytes at this rate to make, and as long again to run; measured ones correct it.
_FIRST_GUESS_BYTES_PER_S = 2e9
# A step that was begun in time may end this much late.
_GRACE_S = 10


@dataclass
class Run:
    """What is measured so far, and the time that is left."""

    budget_s: float
    began_s: float = field(default_factory=time.monotonic)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    @property
    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_s)

    def add(self, step: str, row: dict[str, Any]) -> None:
        """Keep a row, and print it while the rest still runs."""
        self.rows.setdefault(step, []).append(row)
        shown = {key: value for key, value in row.items() if not isinstance(value, (dict, list))}
        print(f"{step}: " + ", ".join(f"{key} {_short(value)}" for key, value in shown.items()), flush=True)

    def attempt(self, step: str, what: dict[str, Any], work: Callable[[], dict[str, Any]], needs_s: float = 15) -> None:
        """Run `work` if there is time for it; what it raises becomes a row, so that the other steps still run."""
        if self.left_s < needs_s:
            self.add(step, {**what, "ok": None, "skipped": f"needs about {needs_s:.0f} s of {self.left_s:.0f} s left"})
            return
        start = time.monotonic()
        signal.signal(signal.SIGALRM, _late)
        signal.setitimer(signal.ITIMER_REAL, self.left_s + _GRACE_S)
        try:
            row = work()
        except Exception as error:
            row = {"ok": False, "error": f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"}
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.add(step, {**what, **row, "seconds": time.monotonic() - start})


def _late(*_: Any) -> None:
    raise TimeoutError("the time for the whole run was over")


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", default="real", help="real, tiny, or model ids of configs/models.toml, by comma")
    parser.add_argument("--budget-s", type=float, default=450)
    parser.add_argument("--only", choices=STEPS, help="this step alone")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(ROOT))
    missing = [name for name in ("torch", "transformers", "accelerate", "safetensors") if not _is_installed(name)]
    if missing:
        print(f"gpu: {', '.join(missing)} not installed here; nothing was measured")
        return 0
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu: torch sees no card on this machine; nothing was measured (--device cpu tries the script itself)")
        return 0
    return measure(torch.device("cuda:0" if args.device == "cuda" else "cpu"), args)


def measure(device: Any, args: argparse.Namespace) -> int:
    """All steps; writes the JSON and the table."""
    from bench.gpu_steps.machine import Machine
    from bench.gpu_steps.report import environment, is_well, table
    from bench.limits import measure_limits

    machine, run = Machine(device), Run(args.budget_s)
    about = environment(machine)
    print(
        f"gpu: {machine.name}; " + ", ".join(f"{name} {value}" for name, value in about["versions"].items()), flush=True
    )
    limits = measure_limits(device, 2**20 if args.shapes == "tiny" else None)
    machine.release()
    for step in [args.only] if args.only else STEPS:
        _STEPS[step](run, machine, limits, args.shapes)
    result = {
        "card": machine.name, "date": date.today().isoformat(), "seconds": time.monotonic() - run.began_s, **about,
        "limits": asdict(limits), **run.rows,
    }  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    stem = args.out / f"gpu-{re.sub('[^a-z0-9]+', '-', machine.name.lower()).strip('-')}-{result['date']}"
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(table(result))
    print(f"\n{table(result)}\nwritten: {stem}.json and .md")
    return 0 if is_well(result) else 1


def _quality(run: Run, machine: Any, limits: Any, shapes: str) -> None:
    from bench.gpu_steps.quality import MOST_KL, quality_rows

    if run.left_s < 20:
        run.add("quality", {"ok": None, "skipped": "no time left"})
        return
    for row in quality_rows(machine, ("fp32", "bnb-nf4") if shapes == "tiny" else tuple(MOST_KL)):
        run.add("quality", row)


def _offload(run: Run, machine: Any, limits: Any, shapes: str) -> None:
    from bench.gpu_steps.offload import offloaded_speed_row, offloaded_tokens_row, two_cards_row

    run.attempt("offload", {"what": "same tokens with layers offloaded"}, lambda: offloaded_tokens_row(machine))
    run.attempt("offload", {"what": "same tokens over two cards"}, lambda: two_cards_row(machine))
    model = "tiny-untied" if shapes == "tiny" else "Qwen/Qwen3-8B"
    run.attempt("offload", {"what": "half of the layers in RAM"}, lambda: offloaded_speed_row(machine, model), 60)


def _memory(run: Run, machine: Any, limits: Any, shapes: str) -> None:
    from bench.gpu_steps.machine import optional_packages
    from bench.gpu_steps.shapes import measure_shape

    streams = (1, 4) if shapes == "tiny" else (1, 8, 16)
    rate = _FIRST_GUESS_BYTES_PER_S
    for model, scheme in _models(shapes):
        if scheme.startswith("bnb") and not optional_packages()["bitsandbytes"]:
            run.add(
                "memory", {"model": model, "scheme": scheme, "ok": None, "skipped": "bitsandbytes is not installed"}
            )
            continue
        weights = machine.plan(model, quant="bf16").devices[0].weights_bytes
        start = time.monotonic()

        def work(model: str = model, scheme: str = scheme) -> dict[str, Any]:
            return measure_shape(machine, limits, model, scheme, streams, *((24, 6) if shapes == "tiny" else (512, 32)))

        run.attempt("memory", {"model": model, "scheme": scheme}, work, needs_s=5 + weights / rate)
        taken = time.monotonic() - start
        if "memory" in run.rows["memory"][-1] and weights > 1e9:
            rate = weights / taken


def _models(shapes: str) -> Iterator[tuple[str, str]]:
    """(model, scheme), what matters most first: 32B in every scheme comes after every size in bf16."""
    from bench.gpu_steps.machine import SHAPES, TINY

    if shapes == "tiny":
        yield from ((name, "bf16") for name in TINY)
        yield "tiny-untied", "bnb-nf4"
        return
    names = SHAPES if shapes == "real" else tuple(shapes.split(","))
    yield from ((name, "bf16") for name in names)
    quantized = ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
    for name in [name for name in quantized if name in names] or names[-1:]:
        yield from ((name, scheme) for scheme in ("bnb-nf4", "bnb-int8"))


_STEPS = {"quality": _quality, "offload": _offload, "memory": _memory}


def _is_installed(name: str) -> bool:
    from importlib.util import find_spec

    return find_spec(name) is not None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
