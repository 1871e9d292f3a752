"""Terminal output of `qserve up`: a progress line at start, a summary when ready, a line when it stops."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.text import Text

from qserve.core.cards.refusals import Refusal
from qserve.core.quantization import SCHEMES
from qserve.planner.layout_rows import layout_rows
from qserve.planner.plan import Plan
from qserve.reward.recipe.config import WITHOUT_MODEL
from qserve.supervisor.sanity import Sanity
from qserve.units import format_bytes

__all__ = ["ReadyWorker", "Screen", "ServiceConsole", "ready_rows"]

_log = logging.getLogger("qserve.supervisor")
_TERMS = {"weights": "weights", "kv_cache": "KV", "activations": "activations", "cuda_graphs": "CUDA graphs"}


class _Timed:
    """The name of a phase, and from ten seconds on how long it has lasted; drawn anew with the spinner."""

    def __init__(self, name: str) -> None:
        self._name, self._began_s = name, time.monotonic()

    def __rich__(self) -> str:
        seconds = time.monotonic() - self._began_s
        return escape(self._name) + (f" [dim]{seconds:.0f} s[/dim]" if seconds >= 10 else "")


class ServiceConsole(Console):
    """A console whose reader may close the pipe (`qserve up … | head -1`): the service continues, with one message."""

    def on_broken_pipe(self) -> None:
        """Called by rich, whose default exits silently with status 1."""
        self.quiet = True
        with open(os.devnull, "w") as nowhere, contextlib.suppress(OSError, ValueError):  # noqa: PTH123 - a device
            os.dup2(nowhere.fileno(), self.file.fileno())  # what is still buffered must not fail at the end
        _log.warning("nobody reads standard output any more; serving goes on")


class Screen:
    """Prints to the terminal, or plain lines to a pipe."""

    still_after_s = 15.0
    """How long a phase may last before a pipe hears of it again."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or ServiceConsole(highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._started = time.monotonic()
        self._phase_ended = threading.Event()

    def note(self, text: str) -> None:
        """Print a permanent line."""
        self.console.print(text, markup=False)

    def phase(self, name: str, then: str = "") -> None:
        """Show the phase of the start: a spinner with seconds on a terminal, lines elsewhere.

        `then`: what goes on after it, where the phase itself is an end.
        """
        self._phase_ended.set()
        if not self.console.is_terminal:
            self.console.print(f"  {self.seconds:5.1f} s  {name}", markup=False)
            self._phase_ended = threading.Event()
            threading.Thread(target=self._say_still, args=(then or name, self._phase_ended), daemon=True).start()
        elif self._status is None:
            self._status = self.console.status(_Timed(then or name))
            self._status.start()
        else:
            self._status.update(_Timed(then or name))

    def _say_still(self, name: str, ended: threading.Event) -> None:
        """Repeat the phase now and then: vLLM's first start compiles for minutes without output."""
        began_s = time.monotonic()
        while not ended.wait(self.still_after_s):
            seconds = time.monotonic() - began_s
            self.console.print(f"  {self.seconds:5.1f} s  still {name} (for {seconds:.0f} s)", markup=False)

    @property
    def seconds(self) -> float:
        """Seconds since `qserve up` began."""
        return time.monotonic() - self._started

    def end_progress(self) -> None:
        """Remove the spinner."""
        self._phase_ended.set()
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ready(self, rows: list[tuple[str, str]]) -> None:
        """Print the summary: address, models, memory, example, how to stop."""
        self.end_progress()
        self.console.print(f"\n[bold green]qserve is ready[/bold green] after {self.seconds:.1f} s")
        for name, text in rows:
            self.row(name, text)

    def row(self, name: str, text: str) -> None:
        """Print one row, unwrapped: a wrapped command can't be copied."""
        style = "bold yellow" if name == "Warn" else "bold"
        self.console.print(Text.assemble((f"{name:<6} ", style), text), soft_wrap=True)


@dataclass(frozen=True)
class ReadyWorker:
    """A worker that is ready: `memory` is what it holds as measured, `phases_s` what its start was spent on, `sanity`
    whether its model predicts text, where that was asked. `name` tells replicas of one `role` apart."""

    role: str
    names: tuple[str, ...]
    plan: Plan
    memory: Mapping[str, Any]
    phases_s: Mapping[str, float]
    notes: Sequence[str] = ()
    sanity: Sanity | None = None
    name: str = ""


def ready_rows(
    url: str, workers: Sequence[ReadyWorker], beside: Sequence[Mapping[str, Any]] = (), *, has_key: bool, logs: Path,
    has_ui: bool = False,
) -> list[tuple[str, str]]:  # fmt: skip
    """What `Screen.ready` shows: name and text of each row. `beside`: `HostMemory.documents`."""
    rows = [("API", f"{url}/v1  ({'guarded by your key' if has_key else 'no key; only this machine reaches it'})")]
    if has_ui:
        rows.append(("UI", f"{url}/  (in a browser; it starts when it is first opened)"))
    for role in dict.fromkeys(worker.role for worker in workers):
        replicas = [worker for worker in workers if worker.role == role]
        rows += _worker_rows(replicas[0]) if len(replicas) == 1 else _role_rows(replicas)
        rows += [("Warn", refused.warning) for refused in _refused_kernels(replicas)]
    return [
        *rows,
        *([("Beside", " · ".join(map(_beside, beside)))] if beside else []),
        ("Try", _example(url, workers[0], has_key)),
        ("Logs", str(logs)),
        ("Stop", "Ctrl-C; running requests finish first"),
    ]


def _refused_kernels(replicas: Sequence[ReadyWorker]) -> list[Refusal]:
    """Each kernel once, whichever replicas' cards refused it."""
    found = (one for worker in replicas for one in (worker.memory.get("kernels") or {}).get("refused", ()))
    return list({one["kernel"]: Refusal.from_json(one) for one in found}.values())


def _role_rows(replicas: Sequence[ReadyWorker]) -> list[tuple[str, str]]:
    """Rows common to all replicas, then one for each: device, memory, start time."""
    common = [row for row in _worker_rows(replicas[0]) if row[0] not in ("Memory", "Start", "")]
    return [*common, *((worker.name, _replica(worker)) for worker in replicas)]


def _replica(worker: ReadyWorker) -> str:
    tokens = worker.memory.get("kv_cache_tokens")
    parts = [_devices(worker.plan), _memory(worker), f"KV pool of {tokens:,} tokens" if tokens else ""]
    return " · ".join([part for part in parts if part] + [f"start {sum(worker.phases_s.values()):.1f} s"])


def _worker_rows(worker: ReadyWorker) -> list[tuple[str, str]]:
    plan, limits = worker.plan, worker.plan.workload
    scheme = "" if SCHEMES[plan.quant.scheme].bits >= 16 else f" · {plan.quant.scheme}"
    model = (
        f"{', '.join(worker.names)} · {plan.model.architecture} · {plan.model.parameters / 1e6:,.1f} M parameters"
        f"{scheme} · {plan.dtype} · {plan.engine} on {_devices(plan)}"
    )
    limit = f"{limits.max_model_len:,} tokens a request · {limits.max_num_seqs} sequences at once"
    tokens = worker.memory.get("kv_cache_tokens")
    if tokens:
        limit += f" · KV pool of {tokens:,} tokens (planned {plan.kv_cache_tokens:,})"
    start = " · ".join(f"{name} {seconds:.1f} s" for name, seconds in worker.phases_s.items() if seconds >= 0.1)
    if plan.model.architecture == WITHOUT_MODEL:
        held = worker.memory.get("resident_bytes")
        return [
            ("Reward", f"{', '.join(worker.names)} · rules and judges, no model of its own"),
            *([("Memory", f"resident now {format_bytes(held)}")] if held else []),
            ("Start", start),
            *(("Note", note) for note in worker.notes),
        ]
    return [
        ("Model" if worker.role == "chat" else worker.role.capitalize(), model),
        ("Limits", limit),
        ("Memory", _memory(worker)),
        *(("", row) for row in _held_back_rows(plan)),
        *(("" if index else "Layers", row) for index, row in enumerate(layout_rows(plan))),
        ("Start", start),
        *([] if worker.sanity is None else check_rows(worker.sanity)),
        *(("Note", note) for note in worker.notes),
    ]


def check_rows(sanity: Sanity) -> list[tuple[str, str]]:
    """Whether a model predicts text, as a row."""
    return [("Warn" if sanity.is_noise else "Check", sanity.summary)]


def _held_back_rows(plan: Plan) -> list[str]:
    """Memory held back from the cache because of uncertain terms; at most one row."""
    held = [term for device in plan.devices for term in device.terms if term.name == "held back" and term.num_bytes]
    if not held:
        return []
    most = max(held, key=lambda term: term.num_bytes)
    return [f"{format_bytes(most.num_bytes)} of a card held back: {most.formula.partition(':')[0]}"]


def _memory(worker: ReadyWorker) -> str:
    """Measured and planned memory of each term that the engine reports."""
    devices = worker.plan.devices
    planned = {name: sum(getattr(device, f"{name}_bytes") for device in devices) for name in _TERMS}
    figures = [
        f"{text} {format_bytes(worker.memory[f'{name}_bytes'])} (planned {format_bytes(planned[name])})"
        for name, text in _TERMS.items()
        if worker.memory.get(f"{name}_bytes")
    ]
    held = worker.memory.get("resident_bytes")
    return " · ".join([*figures, *([f"resident now {format_bytes(held)}"] if held else [])])


def _beside(one: Mapping[str, Any]) -> str:
    """A process without a model: its memory now, or the planned one."""
    held, planned = one["resident_bytes"], format_bytes(one["planned_bytes"])
    return f"{one['process']} " + (f"{format_bytes(held)} (planned {planned})" if held else f"planned {planned}")


def _devices(plan: Plan) -> str:
    """Equal devices counted: `2 × NVIDIA GeForce RTX 4090`."""
    names = Counter(device.name for device in plan.devices)
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())


def _example(url: str, worker: ReadyWorker, has_key: bool) -> str:
    header = '-H "authorization: Bearer $QSERVE_API_KEY" ' if has_key else ""
    question = '{"role": "user", "content": "What is 12+30?"}'
    if worker.role == "reward":
        answer = '{"role": "assistant", "content": "42"}'
        path, body = "/v1/reward", f'{{"model": "{worker.names[0]}", "conversations": [[{question}, {answer}]]}}'
    else:
        path, body = "/v1/chat/completions", f'{{"model": "{worker.names[0]}", "messages": [{question}]}}'
    return f"curl {url}{path} -H 'content-type: application/json' {header}-d '{body}'"
