"""What `qserve up` says: a progress line while it starts, one screen when it is ready, a sentence when it stops."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status
from rich.text import Text

from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = ["Screen", "ready_rows"]


class Screen:
    """Talks to the terminal, or in plain lines to a pipe."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None
        self._started = time.monotonic()

    def note(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False)

    def phase(self, name: str) -> None:
        """What the start is at: a spinner on a terminal, a line elsewhere."""
        if not self.console.is_terminal:
            self.console.print(f"  {self.seconds:5.1f} s  {name}", markup=False)
        elif self._status is None:
            self._status = self.console.status(name)
            self._status.start()
        else:
            self._status.update(name)

    @property
    def seconds(self) -> float:
        """Seconds since `qserve up` began."""
        return time.monotonic() - self._started

    def end_progress(self) -> None:
        """Take the spinner away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def ready(self, rows: dict[str, str]) -> None:
        """The screen that a user acts on: what to call, what is served, what it holds, how to stop."""
        self.end_progress()
        self.console.print(f"\n[bold green]qserve is ready[/bold green] after {self.seconds:.1f} s")
        for name, text in rows.items():
            # One line each, however long: a command that is wrapped can't be copied.
            self.console.print(Text.assemble((f"{name:<7}", "bold"), text), soft_wrap=True)


def ready_rows(
    url: str, names: tuple[str, ...], plan: Plan, memory: dict[str, Any], *, has_key: bool, logs: Path
) -> dict[str, str]:
    """What `Screen.ready` shows. `memory` is the worker's GET /v1/qserve/memory."""
    limits, device = plan.workload, plan.devices[0]
    key_header = '-H "authorization: Bearer $QSERVE_API_KEY" ' if has_key else ""
    body = f'{{"model": "{names[0]}", "messages": [{{"role": "user", "content": "What is 12+30?"}}]}}'

    def term(name: str, planned_bytes: int) -> str:
        return f"{format_bytes(memory[f'{name}_bytes'])} (planned {format_bytes(planned_bytes)})"

    return {
        "API": f"{url}/v1  ({'guarded by your key' if has_key else 'no key; only this machine reaches it'})",
        "Model": f"{', '.join(names)} · {plan.model.architecture} · {plan.model.parameters / 1e6:,.1f} M parameters · "
        f"{plan.dtype} · {plan.engine} on {device.name}",
        "Limits": f"{limits.max_model_len:,} tokens a request · {limits.max_num_seqs} sequences at once · "
        f"KV pool of {memory['kv_cache_tokens']:,} tokens",
        "Memory": f"weights {term('weights', device.weights_bytes)} · KV {term('kv_cache', device.kv_cache_bytes)} · "
        f"resident now {format_bytes(memory['resident_bytes'])}",
        "Try": f"curl {url}/v1/chat/completions -H 'content-type: application/json' {key_header}-d '{body}'",
        "Logs": str(logs),
        "Stop": "Ctrl-C; running requests finish first",
    }
