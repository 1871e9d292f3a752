"""Runs steps for bench/gpu.py: python child.py DEVICE PIPE. See `steps.StepProcess`."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # not this folder

if TYPE_CHECKING:
    from bench.gpu_steps.machine import Machine


def main() -> None:
    """Answer requests until the parent has no more, or is gone."""
    from qserve.engine.process import end_with_parent

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both, and the parent ends this one
    device, pipe = sys.argv[1], int(sys.argv[2])
    for line in sys.stdin:
        try:
            answer = _answer(device, json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"}
        os.write(pipe, json.dumps(answer).encode() + b"\n")


def _answer(device: str, request: dict[str, Any]) -> dict[str, Any]:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        return {"no_card": f"torch {torch.__version__} sees no card on this machine{_why_none()}"}
    from bench.gpu_steps.machine import Machine

    step = _STEPS[request.pop("do")]
    return step(Machine(torch.device("cuda:0" if device == "cuda" else "cpu")), **request)


def _why_none() -> str:
    import torch

    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f" ({next(iter(str(error).strip().splitlines()), '')})"
    return ""


def _begin(machine: Machine, shapes: str) -> dict[str, Any]:
    """What is here, and what the shapes weigh."""
    import bench.gpu_steps.shapes  # noqa: F401  # all of transformers that steps need: one error here, not one a step
    from bench.gpu_steps.machine import SHAPES, TINY, environment

    names = list(TINY) if shapes == "tiny" else SHAPES if shapes == "real" else shapes.split(",")
    scheme = machine.scheme_16_bit
    weights = {name: machine.plan(name, quant=scheme).devices[0].weights_bytes for name in names}
    return {**environment(machine), "scheme": scheme, "weights_bytes": weights}


def _limits(machine: Machine, size_bytes: int | None) -> dict[str, Any]:
    from bench.limits import measure_limits

    limits = measure_limits(machine.device, size_bytes)
    machine.release()
    return asdict(limits)


def _quality(machine: Machine, scheme: str) -> dict[str, Any]:
    from bench.gpu_steps.quality import quality_row

    return quality_row(machine, scheme)


def _offloaded_tokens(machine: Machine) -> dict[str, Any]:
    from bench.gpu_steps.offload import offloaded_tokens_row

    return offloaded_tokens_row(machine)


def _two_cards(machine: Machine) -> dict[str, Any]:
    from bench.gpu_steps.offload import two_cards_row

    return two_cards_row(machine)


def _offloaded_speed(machine: Machine, model: str) -> dict[str, Any]:
    from bench.gpu_steps.offload import offloaded_speed_row

    return offloaded_speed_row(machine, model)


def _shape(machine: Machine, limits: dict[str, Any] | None, **what: Any) -> dict[str, Any]:
    from bench.gpu_steps.shapes import measure_shape
    from bench.limits import Limits

    return measure_shape(machine, Limits(**limits) if limits else None, **what)


def _waves(machine: Machine, **what: Any) -> dict[str, Any]:
    from bench.gpu_steps.waves import waves_row

    return waves_row(machine, **what)


def _startup(machine: Machine, model: str) -> dict[str, Any]:
    from bench.gpu_steps.waves import startup_row

    return startup_row(machine, model)


def _vllm(machine: Machine, **what: Any) -> dict[str, Any]:
    from bench.gpu_steps.real_vllm import vllm_row

    return vllm_row(machine, **what)


_STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "begin": _begin, "limits": _limits, "quality": _quality, "offloaded_tokens": _offloaded_tokens,
    "two_cards": _two_cards, "offloaded_speed": _offloaded_speed, "shape": _shape,
    "waves": _waves, "startup": _startup, "vllm": _vllm,
}  # fmt: skip


if __name__ == "__main__":
    main()
