"""The memory and latency page: what was planned, what is held, how fast answers come, what ran before."""

from __future__ import annotations

import time
from typing import Any

import gradio as gr

from qserve.client.metrics import Sample, samples_of
from qserve.ui.client.api import ApiFailure
from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked
from qserve.ui.views.failures import failure_view
from qserve.ui.views.latency import latency_view, live_view, planned_latency_view
from qserve.ui.views.memory import host_view, memory_view
from qserve.ui.views.results import comparisons_view, evals_view, runs_view

__all__ = ["MemoryPage"]

_EVERY_S = 2.0
_OPEN = {"memory": True, "latency": True, "runs": False}


class MemoryPage(Page):
    """It asks only while somebody looks at it."""

    name = "memory"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        with gr.Row(elem_classes="qs-tools"):
            self._refresh = gr.Button(marked("memory.refresh"), size="sm", scale=0, min_width=100, elem_id="qs-refresh")
            self._follow = gr.Checkbox(
                True, label=marked("memory.live.follow"), container=False, scale=0, min_width=200, elem_id="qs-follow"
            )
            gr.Button(
                marked("memory.report"),
                link=shared.report_url,
                link_target="_blank",
                size="sm",
                scale=0,
                min_width=110,
                elem_id="qs-report",
            )
        self._live = gr.HTML("", elem_id="qs-live", apply_default_css=False)
        self._views = {}
        for name, is_open in _OPEN.items():
            with gr.Accordion(marked(f"memory.{name}"), open=is_open, elem_id=f"qs-{name}-part"):
                self._views[name] = gr.HTML("", elem_id=f"qs-{name}", apply_default_css=False)
        self.timer = gr.Timer(_EVERY_S, active=False)
        # The samples before: (seconds, samples), for rates.
        self._before = gr.State(None)
        self._connect()

    def _connect(self) -> None:
        language, drawn = self._shared.language, [self._live, self._before]
        everything = [*drawn, *self._views.values(), self.timer]
        inputs = [language, self._before, self._follow]
        self.on_open = self._opened, inputs, everything
        self._refresh.click(*self.on_open, **PRIVATE)
        self._follow.change(lambda wanted: gr.Timer(active=wanted), self._follow, self.timer, **PRIVATE)
        self.timer.tick(self._now, inputs, everything, **PRIVATE)

    @staticmethod
    def can_be_filled(served: ServedModels) -> bool:
        """The server reports its memory."""
        return served.is_qserve

    async def _now(self, language: str, before: Any, follow: bool) -> Update:
        if before is None:  # nothing is drawn, or the server was away
            return await self._all(language, before, follow)
        try:
            samples = samples_of(await self._shared.api.get_text("/metrics"))
        except ApiFailure as failure:
            return {self._live: failure_view(failure, language, tries_again=True), self._before: None}
        return self._live_update(samples, before, language)

    async def _opened(self, language: str, before: Any, follow: bool) -> Update:
        return {self.timer: gr.Timer(active=follow), **await self._all(language, before, follow)}

    async def _all(self, language: str, before: Any, follow: bool) -> Update:
        try:
            samples = samples_of(await self._shared.api.get_text("/metrics"))
            report = await self._shared.api.get("/v1/qserve/report")
        except ApiFailure as failure:
            return {self._live: failure_view(failure, language, tries_again=follow), self._before: None}
        return {
            **self._live_update(samples, before, language),
            self._views["memory"]: (
                memory_view(report["data"], language) + host_view(report.get("host") or (), language)
            ),
            self._views["latency"]: planned_latency_view(report["data"], language) + latency_view(samples, language),
            self._views["runs"]: await self._runs(language),
        }

    def _live_update(self, samples: list[Sample], before: Any, language: str) -> Update:
        now = time.monotonic()
        then, earlier = before or (now, [])
        return {
            self._live: live_view(samples, earlier, now - then, language),
            self._before: (now, [one for one in samples if one.name.endswith("_total")]),
        }

    async def _runs(self, language: str) -> str:
        """The history, and what was evaluated and compared in the newest run."""
        try:
            runs = (await self._shared.api.get("/v1/qserve/runs"))["data"]
            newest = await self._shared.api.get(f"/v1/qserve/runs/{runs[0]['id']}") if runs else {}
        except ApiFailure as failure:
            return failure_view(failure, language)
        kept = evals_view(newest.get("evals") or (), language)
        compared = comparisons_view(newest.get("comparisons") or (), language)
        return runs_view(runs, language) + kept + compared
