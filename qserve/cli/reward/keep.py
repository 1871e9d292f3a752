"""Adds results of reward models to the run store, and to the run of the server that computed them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.state_folder import state_folder

__all__ = ["keep", "state_option"]

Function = TypeVar("Function", bound=Callable[..., Any])
_TIMEOUT_S = 10


def state_option(function: Function) -> Function:
    """Adds --state-dir."""
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path),
        envvar="QSERVE_STATE_DIR",
        help="Run store for the result [~/.local/state/qserve].",
    )(function)


def keep(state_dir: Path | None, kind: str, document: Mapping[str, Any], url: str | None, api_key: str | None) -> None:
    """Add the result to the store as `kind`; if that fails, print a warning only."""
    from qserve.runs import RunStore, StoreUnusable

    try:
        store = RunStore.open(state_folder(state_dir))
        store.add_eval({"kind": kind, **document}, name=kind, run=_run_of(url, api_key) if url else None)
    except StoreUnusable as error:
        click.echo(f"the result is not in the run store: {error}", err=True)


def _run_of(url: str, api_key: str | None) -> str | None:
    """The run id that a server reports; None if it reports none."""
    from qserve.client.answer import NotJson, Refused, Unreachable, UnsendableKey
    from qserve.client.http import ask

    key = api_key or os.environ.get("QSERVE_API_KEY")
    try:
        answer = ask("GET", f"{url.rstrip('/')}/v1/qserve/report", api_key=key, timeout_s=_TIMEOUT_S)
        run = answer.raise_for_status().json().get("run")
    except (Unreachable, Refused, NotJson, UnsendableKey, AttributeError):
        return None
    return run if isinstance(run, str) else None
