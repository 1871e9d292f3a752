"""Whether this machine's cards take the engine's own kernels: as the last start told it, or tried now (--kernels)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.cli.doctor.checks import Check
from qserve.engines.transformers.kernels.refusals import Refusal
from qserve.errors import QserveError

if TYPE_CHECKING:
    from qserve.runs import RunStore

__all__ = ["TRIAL", "as_last_start_told", "tried_now"]

TRIAL = "qserve.engines.transformers.worker.kernel_trial"
_TRY, _ALL_OUTPUT = "qserve doctor --kernels tries them now", f"the compiler's full output: python -m {TRIAL}"
_MOST_SECONDS = 300
_MOST_RUNS = 20
_OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}
"""As workers run: they take kernels of the hub that are on disk, and fetch none."""


def tried_now(limit_s: float = _MOST_SECONDS, command: Sequence[str] = (sys.executable, "-m", TRIAL)) -> list[Check]:
    """A process of its own tries every kernel on every card; one that hangs is ended after `limit_s`."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=_OFFLINE)
    except subprocess.TimeoutExpired:
        return [_warning(f"the kernels did not compile and run within {limit_s:.0f} s", _ALL_OUTPUT)]
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
        return [_warning(f"the kernels could not be tried: {reason}", _ALL_OUTPUT)]
    cards = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not cards:
        return [_warning("the kernels were not tried: torch sees no card", "")]
    return [check for card in cards for check in _of_card(card)]


def as_last_start_told(state: Path) -> list[Check]:
    """Of the newest run in `state` that had a worker of the own engine on a card; a hint where there is none."""
    from qserve.runs import RunStore

    try:
        store = RunStore.open_existing(state)
        found = next(_starts_on_cards(store), None) if store else None
    except QserveError as error:
        return [_warning(f"the result of the last start can't be read: {error}", _TRY)]
    if found is None:
        return [Check("engine", "kernels", "ok", "not tried yet: a worker tries them when it starts", _TRY)]
    run, document = found
    refused = [Refusal.from_json(one) for one in document["refused"]]
    if not refused:
        return [Check("engine", "kernels", "ok", f"no card refused any in run {run}", _TRY)]
    return [_warning(f"in run {run}: {one}", _TRY) for one in refused]


def _of_card(card: Mapping[str, Any]) -> Iterator[Check]:
    refused = [Refusal.from_json(one) for one in card["refused"]]
    yield from (_warning(f"{card['card']}: {one}", _ALL_OUTPUT) for one in refused)
    right = [name for name in card["tried"] if name not in {one.kernel for one in refused}]
    if right:
        yield Check("engine", "kernels", "ok", f"{card['card']}: {', '.join(right)} compile and are right")


def _starts_on_cards(store: RunStore) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Id and `kernels` of each worker's last document, newest run first."""
    for run in store.runs(_MOST_RUNS):
        for sample in reversed(store.memory(run)):
            if sample.document.get("devices") and "refused" in sample.document.get("kernels", {}):
                yield run.id, sample.document["kernels"]


def _warning(found: str, remedy: str) -> Check:
    return Check("engine", "kernels", "warning", found, remedy)
