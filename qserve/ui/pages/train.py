"""The page of training runs: the curves of one that goes on or has ended, what fills its card, what it writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gradio as gr

from qserve.ui.client.api import ApiFailure
from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked, translate
from qserve.ui.views.failures import failure_view
from qserve.ui.views.training import (
    configuration_view,
    curves_view,
    first_run_view,
    head_view,
    held_view,
    rollouts_view,
    state_text,
)

__all__ = ["TrainPage"]

_EVERY_S = 2.0


class TrainPage(Page):
    """While somebody looks at it, it asks every two seconds which runs there are; only what has changed is fetched and
    drawn again.
    """

    name = "train"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._run = gr.Dropdown(
            [], label=marked("train.run"), elem_id="qs-train-run", visible=False, filterable=False, min_width=320
        )
        names = ("head", "curves", "held", "rollouts", "configuration")
        self._views = {name: gr.HTML("", elem_id=f"qs-train-{name}", apply_default_css=False) for name in names}
        self.timer = gr.Timer(_EVERY_S, active=False)
        # What is drawn: the list of runs, the chosen one and when it changed last.
        self._drawn = gr.State(None)
        inputs = [shared.language, self._run, self._drawn]
        everything = [self._run, self._drawn, self.timer, *self._views.values()]
        self.on_open = self._opened, inputs, everything
        self.timer.tick(self._look, inputs, everything, **PRIVATE)
        self._run.input(self._look, inputs, everything, **PRIVATE)

    @staticmethod
    def can_be_filled(served: ServedModels) -> bool:
        """The server lists the runs of its store."""
        return served.is_qserve

    async def _opened(self, language: str, chosen: str | None, drawn: Any) -> Update:
        """In whatever language the page is shown now, all is drawn again."""
        return {self.timer: gr.Timer(active=True), **await self._look(language, chosen, None)}

    async def _look(self, language: str, chosen: str | None, drawn: Any) -> Update:
        try:
            listed = await self._shared.api.get("/v1/qserve/trainings")
            return await self._changes(listed, language, chosen, drawn)
        except ApiFailure as failure:
            return {self._views["head"]: failure_view(failure, language, tries_again=True), self._drawn: None}

    async def _changes(self, listed: Mapping[str, Any], language: str, chosen: str | None, drawn: Any) -> Update:
        runs = {one["id"]: one for one in listed["data"]}
        if not runs:
            return {self._views["head"]: first_run_view(listed["state_dir"], language)}
        choices = [(_named(one, language), name) for name, one in runs.items()]
        one = runs.get(chosen or "") or next(iter(runs.values()))
        now = [choices, one["id"], one["updated_unix_s"], one["state"], language]
        if drawn is not None and now == drawn:
            return {self._drawn: drawn}
        update = await self._drawn_again(one, language, is_other=drawn is None or drawn[1] != one["id"])
        if drawn is None or drawn[0] != choices or chosen != one["id"]:
            update[self._run] = gr.update(choices=choices, value=one["id"], visible=True)
        return {**update, self._drawn: now}

    async def _drawn_again(self, one: Mapping[str, Any], language: str, is_other: bool) -> Update:
        run = await self._shared.api.get(f"/v1/qserve/runs/{one['id']}")
        if not run["trainings"]:
            return {self._views["head"]: f'<p class="qs-small">{translate(language, "train.no_steps")}</p>'}
        document = run["trainings"][-1]["document"]
        views = {
            "head": head_view(document, _state(one, document), language),
            "curves": curves_view(document, language),
            "held": held_view(document, language),
            "rollouts": rollouts_view(document, language),
        }
        if is_other:  # what somebody may be about to copy stays as it is
            views["configuration"] = configuration_view(run, document, language)
        return {self._views[name]: view for name, view in views.items()}


def _state(one: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A run that died could not say so."""
    return str(document["state"] if one["state"] == "ended" else one["state"])


def _named(one: Mapping[str, Any], language: str) -> str:
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(one["started_unix_s"]))
    state = one["state"] if one["exit_status"] in (None, 0) else "failed"
    return f"{one['name'] or one['id']} · {began} · {state_text(state, language)}"
