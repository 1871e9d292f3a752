"""One script for a machine with a card: is every quantization right, does memory come out as planned, how fast is it?

    python bench/gpu.py                              # all steps within 9 minutes; writes docs/results/gpu-CARD-DATE.*
    python bench/gpu.py --budget-s 200 --only memory
    python bench/gpu.py --device cpu --shapes tiny   # every line of it in seconds; the figures mean nothing

It needs torch, transformers and accelerate, nothing else of qserve's dependencies, no network and no weights: shapes
run on random weights, correctness on the bundled demo model. What needs a package that is missing, or more time than
is left, is skipped and named. The steps run in a process of their own, so that one that crashes or hangs costs itself
alone, and the files are written after each. Exit status: 0 well, or no card; 1 something is not right.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if not __package__:  # run as a script
    sys.path[0] = str(ROOT)  # not bench/, whose files have common names

from bench.gpu_steps.run import Run  # noqa: E402  # after the path
from bench.gpu_steps.steps import StepProcess  # noqa: E402

GROUPS = ("quality", "offload", "waves", "vllm", "memory")
_NEEDED = ("torch", "transformers", "accelerate", "safetensors")
_SCHEMES = ("fp32", "bf16", "fp16", "bnb-int8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4")
# A shape takes about its weights' bytes at this rate to make, and as long again to run; measured ones correct it.
_FIRST_GUESS_BYTES_PER_S = 2e9
# What a step may take before it counts as hung: the first one imports torch, maybe from a cold disk.
_BEGIN_S, _LIMITS_S, _QUALITY_S, _OFFLOAD_S, _MEMORY_S, _WAVES_S, _VLLM_S = 180, 60, 90, 120, 150, 90, 240
_LOAD = {"streams": (1, 8, 16), "prompt_len": 512, "steps": 32}
_WAVES = ((16, True), (64, False), (64, True))
_TINY_LOAD = {"streams": (1, 4), "prompt_len": 24, "steps": 6}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--shapes", default="real", help="real, tiny, or model ids of configs/models.toml, by comma")
    parser.add_argument("--budget-s", type=float, default=540)
    parser.add_argument("--only", choices=GROUPS, help="these steps alone")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    if sys.version_info < (3, 11):  # noqa: UP036  # it is run by whatever Python there is
        print(f"gpu: qserve needs Python 3.11, this is {sys.version.split()[0]}; nothing was measured")
        return 0
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        print(f"gpu: {', '.join(missing)} not installed here; nothing was measured")
        return 0
    os.environ["HF_HUB_OFFLINE"] = "1"
    child = [sys.executable, str(ROOT / "bench" / "gpu_steps" / "child.py"), args.device]
    with StepProcess(child) as steps:
        return measure(steps, args)


def measure(steps: StepProcess, args: argparse.Namespace) -> int:
    """All steps; after each the JSON and the table are written."""
    run = Run(args.budget_s, args.out)
    about = steps.ask({"do": "begin", "shapes": args.shapes}, _BEGIN_S)
    if "error" in about:
        print(f"gpu: can't begin: {about['error']}; nothing was measured")
        return 1
    if "no_card" in about:
        print(f"gpu: {about['no_card']}; nothing was measured (--device cpu tries the script itself)")
        return 0
    run.begin(about)
    try:
        run.result["limits"] = steps.ask({"do": "limits", "size_bytes": _size(args.shapes)}, _LIMITS_S)
        for group in [args.only] if args.only else GROUPS:
            _STEPS[group](run, steps, args.shapes)
    except KeyboardInterrupt:
        run.add("memory", {"what": "the rest", "ok": None, "skipped": "interrupted"})
    run.end()
    return 0 if run.is_well else 1


def _quality(run: Run, steps: StepProcess, shapes: str) -> None:
    for scheme in ("fp32", "bnb-nf4") if shapes == "tiny" else _SCHEMES:
        ask = partial(steps.ask, {"do": "quality", "scheme": scheme})
        run.attempt("quality", {"scheme": scheme}, ask, _QUALITY_S, lacks=_lacks(scheme, run.result))


def _offload(run: Run, steps: StepProcess, shapes: str) -> None:
    tokens, cards = partial(steps.ask, {"do": "offloaded_tokens"}), partial(steps.ask, {"do": "two_cards"})
    run.attempt("offload", {"what": "same tokens with layers offloaded"}, tokens, _OFFLOAD_S)
    run.attempt("offload", {"what": "same tokens over two cards"}, cards, _OFFLOAD_S)
    model = "tiny-untied" if shapes == "tiny" else "Qwen/Qwen3-8B"
    half = partial(steps.ask, {"do": "offloaded_speed", "model": model})
    run.attempt("offload", {"what": "half of the layers in RAM"}, half, _OFFLOAD_S, needs_s=60)


def _waves(run: Run, steps: StepProcess, shapes: str) -> None:
    """Many streams, greedy and drawn, and a start from nothing: each row on its own."""
    model = "tiny-untied" if shapes == "tiny" else "Qwen/Qwen3-8B"
    load = {"prompt_len": 24, "steps": 4} if shapes == "tiny" else {"prompt_len": 256, "steps": 32}
    for streams, sampled in _WAVES:
        what = {"what": f"{streams} streams, {'sampled' if sampled else 'greedy'}", "model": model}
        ask = {"do": "waves", "model": model, "streams": streams, "sampled": sampled, **load}
        run.attempt("waves", what, partial(steps.ask, ask), _WAVES_S, needs_s=30)
    steps.fresh()  # a start that finds nothing imported
    ask = {"do": "startup", "model": model}
    run.attempt("waves", {"what": "start in a new process", "model": model}, partial(steps.ask, ask), _WAVES_S, 30)


def _vllm(run: Run, steps: StepProcess, shapes: str) -> None:
    lacks = None if run.result["optional_packages"].get("vllm") else "vllm is not installed"
    for model in ["tiny-untied"] if shapes == "tiny" else ["Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"]:
        steps.fresh()  # it takes what is free for its own
        ask = {"do": "vllm", "model": model, "streams": 4 if shapes == "tiny" else 64, "steps": 16}
        run.attempt("vllm", {"model": model}, partial(steps.ask, ask), _VLLM_S, 60, lacks)
    steps.fresh()


def _memory(run: Run, steps: StepProcess, shapes: str) -> None:
    rate, limits = _FIRST_GUESS_BYTES_PER_S, run.result["limits"]
    load = _TINY_LOAD if shapes == "tiny" else _LOAD
    for model, scheme in _models(shapes, run.result):
        weights, what = run.result["weights_bytes"][model], {"model": model, "scheme": scheme}
        ask = partial(steps.ask, {"do": "shape", **what, **load, "limits": None if "error" in limits else limits})
        row = run.attempt("memory", what, ask, _MEMORY_S, 5 + weights / rate, _lacks(scheme, run.result))
        if "memory" in row and weights > 1e9:
            rate = weights / row["seconds"]


def _size(shapes: str) -> int | None:
    """Of the buffers that are read; None: by the device."""
    return 2**20 if shapes == "tiny" else None


def _models(shapes: str, about: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(model, scheme), what matters most first: 32B in every scheme comes after every size in 16 bit."""
    names = list(about["weights_bytes"])
    yield from ((name, about["scheme"]) for name in names)
    if shapes == "tiny":
        yield names[-1], "bnb-nf4"
        return
    quantized = ("Qwen/Qwen3-32B", "Qwen/Qwen3-8B", "Qwen/Qwen3-0.6B")
    for name in [name for name in quantized if name in names] or names[-1:]:
        yield from ((name, scheme) for scheme in ("bnb-nf4", "bnb-int8"))


def _lacks(scheme: str, about: dict[str, Any]) -> str | None:
    without = scheme.startswith("bnb") and not about["optional_packages"]["bitsandbytes"]
    return "bitsandbytes is not installed" if without else None


_STEPS = {"quality": _quality, "offload": _offload, "waves": _waves, "vllm": _vllm, "memory": _memory}


if __name__ == "__main__":
    sys.exit(main())
