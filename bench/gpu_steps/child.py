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
    from bench.gpu_steps.loaded import LoadedShape
    from bench.gpu_steps.machine import Machine
    from bench.gpu_steps.service import Service


def main() -> None:
    """Answer requests until the parent has no more, or is gone."""
    from qserve.worker.process import end_with_parent

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both, and the parent ends this one
    device, pipe = sys.argv[1], int(sys.argv[2])
    session = Session(device)
    for line in sys.stdin:
        try:
            answer = session.answer(json.loads(line))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"}
        os.write(pipe, json.dumps(answer).encode() + b"\n")


class Session:
    """What stays from one request to the next: a loaded model, or a running service; never both."""

    def __init__(self, device: str) -> None:
        self._device_type = device
        self._loaded: LoadedShape | None = None
        self._service: Service | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The row that `request["do"]` asks for."""
        name = request.pop("do")
        if name.startswith("service_"):
            return self._of_service(name, request)
        self._end_service()
        if name == "end":
            self._unload()
            return {"ok": True}
        missing = self._why_no_card()
        if missing:
            return {"no_card": missing}
        if name in ("memory", "decode", "prompts", "profile"):
            return self._of_loaded(name, request)
        self._unload()
        return _STEPS[name](self._machine(), **request)

    def _of_loaded(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        from bench.gpu_steps.loaded import LoadedShape

        machine = self._machine()
        model, seqs, longest = (request.pop(key) for key in ("model", "max_num_seqs", "max_model_len"))
        scheme = request.pop("scheme").replace("16 bit", machine.scheme_16_bit)
        loaded = self._loaded
        if loaded is None or (loaded.model_id, loaded.scheme) != (model, scheme):
            self._unload()
            loaded = self._loaded = LoadedShape(machine, model, scheme, seqs, longest)
        if loaded.why_not:
            return {"ok": None, "skipped": loaded.why_not}
        row: dict[str, Any] = getattr(loaded, name)(**request)
        return row

    def _of_service(self, name: str, request: dict[str, Any]) -> dict[str, Any]:
        if name == "service_start":
            self._unload()
            self._end_service()
            return self._start_service(**request)
        if self._service is None:
            return {"ok": None, "skipped": "the service did not start"}
        lengths = tuple(request.pop("lengths"))
        return {"ok": True, **self._service.bench(**request, lengths=lengths)}

    def _start_service(
        self, chat: str | None, reward: str | None, flags: list[str], limit_s: float, log: str | None
    ) -> dict[str, Any]:
        from bench.gpu_steps.bodies import chat_folder, reward_config, reward_folder
        from bench.gpu_steps.machine import config_of
        from bench.gpu_steps.service import Service

        configs: dict[str, Any] = {}
        words = list(flags) if self._device_type == "cuda" else [*flags, "--gpu", "none"]
        if chat is not None:
            configs["chat"], words = config_of(chat), ["--model", str(chat_folder(chat)), *words]
        if reward is not None:
            configs["reward"], words = reward_config(reward), ["--reward", str(reward_folder(reward)), *words]
        service = Service(words, configs, Path(log) if log else None)
        try:
            row = service.start(limit_s)
        except BaseException:
            service.end()
            raise
        self._service = service
        return {"ok": service.is_as_planned(row) if self._device_type == "cuda" else None, **row}

    def _end_service(self) -> None:
        if self._service is not None:
            self._service.end()
            self._service = None

    def _unload(self) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def _machine(self) -> Machine:
        import torch

        from bench.gpu_steps.machine import Machine

        return Machine(torch.device("cuda:0" if self._device_type == "cuda" else "cpu"))

    def _why_no_card(self) -> str | None:
        import torch

        if self._device_type != "cuda" or torch.cuda.is_available():
            return None
        return f"torch {torch.__version__} sees no card on this machine{_why_none()}"


def _why_none() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return f" ({next(iter(str(error).strip().splitlines()), '')})"
    return ""


def _begin(machine: Machine) -> dict[str, Any]:
    """What is here: all that rows need is imported, so that what is missing is one error and not one a row."""
    import bench.gpu_steps.loaded  # noqa: F401
    from bench.gpu_steps.machine import environment

    return environment(machine)


def _limits(machine: Machine, size_bytes: int | None) -> dict[str, Any]:
    from bench.limits import measure_limits

    limits = measure_limits(machine.device, size_bytes)
    machine.release()
    return {"planned": machine.planned_limits(), "measured": asdict(limits)}


def _kernel(machine: Machine, **what: Any) -> dict[str, Any]:
    from bench.gpu_steps.kernels import kernel_row

    try:
        return kernel_row(machine, **what)
    finally:
        machine.release()


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


_STEPS: dict[str, Callable[..., dict[str, Any]]] = {
    "begin": _begin,
    "limits": _limits,
    "kernel": _kernel,
    "quality": _quality,
    "offloaded_tokens": _offloaded_tokens,
    "two_cards": _two_cards,
    "offloaded_speed": _offloaded_speed,
}


if __name__ == "__main__":
    main()
