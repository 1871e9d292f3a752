"""The score page: what the reward model thinks of answers to one prompt, and of a file of preferences."""

from __future__ import annotations

import asyncio
import html
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import gradio as gr

from qserve.errors import UsageError
from qserve.rows.fields import told_unread
from qserve.ui.client.api import ApiFailure
from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.preference_files import KINDS, ScoredFile, read_file, score_records
from qserve.ui.strings import marked, translate
from qserve.ui.views.failures import failure_view, refusal_view
from qserve.ui.views.scores import answers_view, file_view

__all__ = ["ScorePage"]

_NUM_ANSWERS = 4
_EXAMPLES = (
    ("What is 17 + 25?", "42", "41"),
    ("Who are you?", "I am the qserve demo model.", "I don't know."),
    ("Name a colour of the sky.", "Blue.", "Seven."),
)


class ScorePage(Page):
    """A form for one prompt, and one for a file."""

    name = "score"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        with gr.Row(elem_classes="qs-columns", equal_height=False):
            with gr.Column(scale=1, min_width=300):
                self._draw_answers()
            with gr.Column(scale=1, min_width=300):
                self._result = gr.HTML("", elem_id="qs-score-result", apply_default_css=False)
        with gr.Accordion(marked("score.file"), open=True, elem_id="qs-score-file"):
            self._draw_file()
        self._connect()

    def _draw_answers(self) -> None:
        self._model = gr.Dropdown([], label=marked("score.model"), visible=False, elem_id="qs-reward-model")
        self._prompt = gr.Textbox(label=marked("score.prompt"), lines=2, max_lines=10, elem_id="qs-score-prompt")
        self._answers = [
            gr.Textbox(label=marked(f"score.answer.{number}"), lines=2, max_lines=12, elem_id=f"qs-answer-{number}")
            for number in range(1, _NUM_ANSWERS + 1)
        ]
        self._reference = gr.Textbox(
            label=marked("score.reference"), lines=1, max_lines=6, elem_id="qs-score-reference"
        )
        self._steps = gr.Checkbox(False, label=marked("score.steps"), elem_id="qs-steps")
        with gr.Row(elem_classes="qs-tools"):
            self._score = gr.Button(
                marked("score.score"), variant="primary", scale=0, min_width=110, elem_id="qs-score"
            )
            self._clear = gr.Button(marked("score.clear"), scale=0, min_width=90, elem_id="qs-score-clear")
        gr.Markdown(marked("score.examples"), elem_classes="qs-small")
        with gr.Row(elem_classes="qs-tools"):
            self._examples = [
                gr.Button(one[0], size="sm", scale=0, min_width=80, elem_classes="qs-example") for one in _EXAMPLES
            ]

    def _draw_file(self) -> None:
        with gr.Row(equal_height=False, elem_classes="qs-columns"):
            with gr.Column(scale=1, min_width=300):
                gr.Markdown(marked("score.file.info"))
                self._file = gr.File(
                    label=marked("score.file"), file_types=list(KINDS), height=120, elem_id="qs-file", buttons=[]
                )
                with gr.Row(elem_classes="qs-tools"):
                    self._run = gr.Button(
                        marked("score.run"), variant="primary", scale=0, min_width=140, elem_id="qs-score-run"
                    )
                    self._download = gr.DownloadButton(
                        marked("score.download"), visible=False, scale=0, min_width=140, elem_id="qs-score-download"
                    )
            with gr.Column(scale=1, min_width=300):
                self._file_result = gr.HTML("", elem_id="qs-file-result", apply_default_css=False)

    @staticmethod
    def can_be_filled(served: ServedModels) -> bool:
        """A reward model is served."""
        return bool(served.reward)

    def show(self, served: ServedModels) -> Update:
        """Updates for the reward models that are served now."""
        names = list(served.reward)
        return {self._model: gr.update(choices=names, value=names[0] if names else None, visible=len(names) > 1)}

    @property
    def outputs(self) -> list[Any]:
        """Components that `show` updates."""
        return [self._model]

    def _connect(self) -> None:
        language = self._shared.language
        inputs = [self._model, language, self._steps, self._reference, self._prompt, *self._answers]
        gr.on(
            [self._score.click, self._prompt.submit, *(one.submit for one in self._answers)],
            self._scored,
            inputs,
            self._result,
            **PRIVATE,
        )
        for button, example in zip(self._examples, _EXAMPLES, strict=True):
            values = [*example, *[""] * (_NUM_ANSWERS + 2 - len(example))]
            texts = [self._prompt, *self._answers, self._reference]
            button.click(lambda values=values: values, None, texts, **PRIVATE).then(
                self._scored, inputs, self._result, **PRIVATE
            )
        cleared = [self._prompt, *self._answers, self._reference, self._result]
        self._clear.click(lambda: [""] * len(cleared), None, cleared, **PRIVATE)
        self._run.click(
            self._scored_file, [self._model, language, self._file], [self._file_result, self._download], **PRIVATE
        )
        self._file.clear(lambda: ("", gr.update(visible=False)), None, [self._file_result, self._download], **PRIVATE)

    async def _scored(self, model: str, language: str, steps: bool, reference: str, prompt: str, *answers: str) -> str:
        given = [(number, text) for number, text in enumerate(answers, start=1) if text.strip()]
        if not prompt.strip() or not given:
            return _failure(translate(language, "score.needs"))
        texts = [_lines(text) if steps else text for _, text in given]
        body: dict[str, Any] = {"model": model, "prompt": prompt, "responses": texts}
        if reference.strip():
            body["references"] = reference
        try:
            scored = await self._shared.api.post("/v1/reward", body)
        except ApiFailure as failure:
            return failure_view(failure, language)
        rows = sorted(scored["data"], key=lambda row: row["index"])
        names = [f"{translate(language, 'score.answer')} {number}" for number, _ in given]
        return answers_view(names, texts, rows, scored.get("meta") or {}, language)

    async def _scored_file(self, model: str, language: str, file: str | None) -> AsyncIterator[Update]:
        if file is None:
            yield {self._file_result: _failure(translate(language, "score.no_file"))}
            return
        yield {self._file_result: _progress(0, 1, ""), self._download: gr.update(visible=False)}
        try:
            unread: Counter[str] = Counter()
            records = await asyncio.to_thread(read_file, Path(file), unread)
            scored = ScoredFile(records, ())
            async for scored in score_records(self._shared.api, model, records):
                done, total = len(scored.rewards), len(records)
                label = translate(language, "score.progress", done=done, total=total)
                yield {self._file_result: _progress(done, total, label)}
            written = await asyncio.to_thread(_written, scored, Path(file))
        except UsageError as unusable:
            yield {self._file_result: refusal_view(str(unusable), language, "failure.file")}
            return
        except ApiFailure as failure:
            yield {self._file_result: failure_view(failure, language)}
            return
        yield {
            self._file_result: file_view(scored, language) + _note(told_unread(unread)),
            self._download: gr.update(value=str(written), visible=True),
        }


def _note(text: str | None) -> str:
    return "" if text is None else f'<p class="qs-small">{html.escape(text)}</p>'


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _written(scored: ScoredFile, file: Path) -> Path:
    """The scored file, in a folder that only this process's user can read."""
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("GRADIO_TEMP_DIR")))
    written = folder / f"{file.stem}-scored{file.suffix.lower()}"
    scored.write(written)
    return written


def _progress(done: int, total: int, label: str) -> str:
    return (
        f'<div class="qs-progress" role="progressbar" aria-valuemin="0" aria-valuemax="{total}" aria-valuenow="{done}" '
        f'aria-label="{html.escape(label or "…")}"><svg class="qs-bar" width="100%" height="10">'
        f'<rect width="100%" height="10" rx="5" class="qs-fill-none"/>'
        f'<rect width="{100 * done / max(1, total):.1f}%" height="10" rx="5" class="qs-fill-best"/></svg>'
        f"<p>{html.escape(label)}</p></div>"
    )


def _failure(sentence: str) -> str:
    return f'<div class="qs-error" role="alert">{html.escape(sentence)}</div>'
