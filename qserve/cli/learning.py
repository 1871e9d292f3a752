"""Corrections of a plan from the memory that earlier runs measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from qserve.errors import QserveError
from qserve.planner.request import PlanRequest

__all__ = ["with_learned"]


def with_learned(request: PlanRequest, state: Path, model: str | None, gpu: str | None, is_off: bool) -> PlanRequest:
    """The request with the residuals of the runs in the state folder.

    Without any for cards that --gpu describes (other cards were measured), and if the run store is missing or can't
    be read: the plan does not depend on it.
    """
    if is_off or model is None or gpu not in (None, "none"):
        return request
    from qserve.runs import RunStore

    try:
        store = RunStore.open_existing(state)
        return replace(request, learned=store.residuals()) if store else request
    except QserveError as error:
        click.secho(f"· planned without what earlier runs measured: {error}", err=True, fg="yellow")
        return request
