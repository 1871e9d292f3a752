"""A page that counts the seconds while somebody looks."""

from __future__ import annotations

from typing import Any

import gradio as gr

from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked


class ClockPage(Page):
    """A number and a button."""

    name = "clock"

    def __init__(self, shared: Shared) -> None:
        self._count = gr.Number(0, elem_id="qs-clock")
        self._names = gr.Textbox("", elem_id="qs-clock-names")
        self.timer = gr.Timer(1.0, active=False)
        self.on_open = (lambda: gr.Timer(active=True)), [], [self.timer]
        gr.Button(marked("clock.again")).click(lambda: 0, None, self._count, **PRIVATE)

    @staticmethod
    def can_be_filled(served: ServedModels) -> bool:
        return bool(served.chat)

    @property
    def outputs(self) -> list[Any]:
        return [self._names]

    def show(self, served: ServedModels) -> Update:
        return {self._names: ", ".join(served.chat)}
