"""What a reward model was found to be worth goes to the run store, beside the run that served it where one did."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.state import state_folder

__all__ = ["keep", "state_option"]

Function = TypeVar("Function", bound=Callable[..., Any])
_TIMEOUT_S = 10


def state_option(function: Function) -> Function:
    """Adds --state-dir."""
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QSERVE_STATE_DIR",
        help="Where the result is kept beside its run [~/.local/state/qserve].",
    )(function)


def keep(state_dir: Path | None, kind: str, document: Mapping[str, Any], url: str | None, api_key: str | None) -> None:
    """Into the store as `kind`; what can't be kept there is said, and costs nothing else."""
    from qserve.runs import RunStore, StoreUnusable

    try:
        store = RunStore.open(state_folder(state_dir))
        store.add_eval({"kind": kind, **document}, name=kind, run=_run_of(url, api_key) if url else None)
    except StoreUnusable as error:
        click.echo(f"the run store does not take the result ({error})", err=True)


def _run_of(url: str, api_key: str | None) -> str | None:
    """The run that a server says it is; None where it does not say."""
    key = api_key or os.environ.get("QSERVE_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/qserve/report", headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - the user's own server
            run = json.load(answer).get("run")
    except (OSError, ValueError, AttributeError):
        return None
    return run if isinstance(run, str) else None
