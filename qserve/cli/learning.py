"""What earlier runs measured, for the plan of the next one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from qserve.errors import QserveError
from qserve.planner.request import PlanRequest

__all__ = ["with_learned"]


def with_learned(request: PlanRequest, state: Path, model: str | None, gpu: str | None, is_off: bool) -> PlanRequest:
    """The request with the residuals of the state folder's runs.

    Without them for cards that --gpu describes (they are not the ones that were measured), and where the store is
    not there or can't be read: a plan is possible all the same.
    """
    if is_off or model is None or gpu not in (None, "none"):
        return request
    from qserve.runs import RunStore
    from qserve.runs.database import FILE_NAME

    if not (state / FILE_NAME).exists():
        return request

    try:
        return replace(request, learned=RunStore.open(state).residuals())
    except QserveError as error:
        click.secho(f"· planned without what earlier runs measured: {error}", err=True, fg="yellow")
        return request
