"""The chat page: one conversation, answered by one model or by two side by side, ranked by the reward model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from html import escape
from typing import Any

import gradio as gr

from qserve.ui.chat.answers import draw_answers, reward_answers
from qserve.ui.chat.conversation import Conversation
from qserve.ui.chat.markdown import MATH_DELIMITERS
from qserve.ui.chat.transcript import Drafts, messages_of, new_drafts, turn_of
from qserve.ui.client.api import ApiFailure
from qserve.ui.client.served_models import ServedModels, served_models
from qserve.ui.pages.chat_form import ChatForm, ChatOptions, chat_form
from qserve.ui.pages.page import Page, Update
from qserve.ui.pages.shared import PRIVATE, Shared
from qserve.ui.strings import marked, translate
from qserve.ui.views.failures import failure_sentence, told_waiting

__all__ = ["ChatPage"]

_EXAMPLES = ("What is 17 + 25?", "Count from 1 to 30", "你好，你是谁？")
_KEEP = "qserve.keep(props, trigger, watch); if (false) trigger('load');"
_HISTORY = "qserve.history(element, trigger); if (false) { trigger('select'); trigger('clear'); }"


class ChatPage(Page):
    """`show` fits it to the models that are served."""

    name = "chat"

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # Its value is the conversation as JSON: the browser holds it, and writes it to its storage.
        self._keeper = gr.HTML(None, html_template="<span hidden></span>", js_on_load=_KEEP, elem_id="qs-keeper")
        with gr.Row(elem_classes="qs-chat", equal_height=False):
            with gr.Column(scale=4, min_width=300, elem_classes="qs-main"):
                self._draw_main()
            with gr.Column(scale=1, min_width=270, elem_classes="qs-side"):
                self._form: ChatForm = chat_form()
                with gr.Accordion(marked("chat.history"), open=True):
                    self._history = gr.HTML(
                        None, html_template="<div></div>", js_on_load=_HISTORY, elem_id="qs-history"
                    )
        self._connect()

    def _draw_main(self) -> None:
        with gr.Row(elem_classes="qs-bots"):
            self._bots = [
                gr.Chatbot(
                    label=marked("chat.conversation" if side == 0 else "chat.second"),
                    show_label=False,
                    visible=side == 0,
                    elem_id=f"qs-bot-{side}",
                    height="max(320px, calc(100dvh - 222px))",
                    min_width=280,
                    editable="user",
                    latex_delimiters=list(MATH_DELIMITERS),
                    allow_tags=False,
                    buttons=[],
                    layout="bubble",
                    placeholder=marked("chat.empty") if side == 0 else None,
                    autoscroll=False,  # follow.js does it: Gradio's own takes a reader down who scrolls up
                    examples=[{"text": text} for text in _EXAMPLES] if side == 0 else None,
                    feedback_options=None,
                )
                for side in range(2)
            ]
        with gr.Row(elem_classes="qs-ask", equal_height=True):
            self._question = gr.Textbox(
                label=marked("chat.question"),
                show_label=False,
                placeholder=marked("chat.placeholder"),
                lines=1,
                max_lines=8,
                scale=6,
                container=False,
                elem_id="qs-question",
                autofocus=True,
            )
            self._send = gr.Button(marked("chat.send"), variant="primary", scale=0, min_width=96, elem_id="qs-send")
            self._stop = gr.Button(
                marked("chat.stop"), variant="stop", scale=0, min_width=96, visible=False, elem_id="qs-stop"
            )
        with gr.Row(elem_classes="qs-tools"):
            self._again, self._continue, self._new, self._export = (
                gr.Button(marked(f"chat.{name}"), size="sm", scale=0, min_width=80, elem_id=f"qs-{name}")
                for name in ("again", "continue", "new", "export")
            )

    def show(self, served: ServedModels) -> Update:
        """Updates for the models that are served now."""
        return self._form.show(served)

    @property
    def outputs(self) -> list[Any]:
        """Components that `show` updates."""
        return self._form.outputs

    # Events

    def _connect(self) -> None:
        form, keeper, language = self._form.inputs, self._keeper, self._shared.language
        compare = self._form.compare
        drawn = [*self._bots, keeper, self._question, self._send, self._stop, compare]
        writing = {"inputs": [self._question, keeper, language, *form], "outputs": drawn, **PRIVATE}
        asks = [
            self._question.submit(self._ask, **writing),
            self._send.click(self._ask, **writing),
            self._again.click(self._ask_again, **writing),
            self._continue.click(self._go_on, **writing),
            self._bots[0].example_select(self._ask_example, **writing),
        ]
        for bot, retried, edited in zip(
            self._bots, (self._ask_again, self._ask_again), (self._edit_first, self._edit_second), strict=True
        ):
            asks += [bot.retry(retried, **writing), bot.edit(edited, **writing)]
            bot.undo(self._undo, [keeper, language], [*self._bots, keeper, self._question], **PRIVATE)
        # What was asked before is cancelled first: its last words must not come after what takes its place.
        stops = {"fn": None, "cancels": asks, **PRIVATE}
        self._stop.click(**stops).then(self._stopped, [keeper, language], drawn, **PRIVATE)
        self._new.click(js="() => { qserve.forget(); return []; }", **stops).then(
            self._fresh, [language, compare], drawn, **PRIVATE
        )
        self._history.clear(**stops).then(self._fresh, [language, compare], drawn, **PRIVATE)
        self._history.select(**stops).then(self._reopened, [keeper, language, compare], drawn, **PRIVATE)
        # The component of the language may not have its value yet.
        spoken = "(kept, _, compare) => [kept, qserve.language, compare]"
        keeper.load(self._reopened, [keeper, language, compare], drawn, js=spoken, **PRIVATE)
        self._export.click(None, keeper, None, js="(c) => { qserve.exportConversation(c); return []; }")
        compare.change(self._compared, [compare, keeper, language], self._bots[1], **PRIVATE)

    async def _ask(self, question: str, kept: Any, language: str, *form: Any) -> AsyncIterator[Update]:
        conversation = Conversation.from_json(kept)
        if not question.strip():
            yield {self._question: gr.skip()}
            return
        async for update in self._answer(conversation, question.strip(), language, self._form.read(form, language)):
            yield update

    async def _ask_example(
        self, event: gr.SelectData, _question: str, kept: Any, language: str, *form: Any
    ) -> AsyncIterator[Update]:
        async for update in self._ask((event.value or {}).get("text", ""), kept, language, *form):
            yield update

    async def _ask_again(self, _question: str, kept: Any, language: str, *form: Any) -> AsyncIterator[Update]:
        conversation = Conversation.from_json(kept)
        if conversation.turns:
            last = len(conversation.turns) - 1
            question = conversation.turns[last].question
            async for update in self._answer(
                conversation.cut(last), question, language, self._form.read(form, language)
            ):
                yield update

    async def _edit_first(
        self, event: gr.EditData, _question: str, kept: Any, language: str, *form: Any
    ) -> AsyncIterator[Update]:
        async for update in self._edited(0, event, kept, language, form):
            yield update

    async def _edit_second(
        self, event: gr.EditData, _question: str, kept: Any, language: str, *form: Any
    ) -> AsyncIterator[Update]:
        async for update in self._edited(1, event, kept, language, form):
            yield update

    async def _edited(
        self, side: int, event: gr.EditData, kept: Any, language: str, form: tuple[Any, ...]
    ) -> AsyncIterator[Update]:
        """The conversation goes on from the changed question; what followed it is dropped."""
        conversation = Conversation.from_json(kept)
        if not conversation.turns:
            return
        index = event.index if isinstance(event.index, int) else event.index[0]
        cut = conversation.cut(turn_of(conversation, side, index))
        async for update in self._answer(cut, str(event.value).strip(), language, self._form.read(form, language)):
            yield update

    async def _go_on(self, _question: str, kept: Any, language: str, *form: Any) -> AsyncIterator[Update]:
        """Writes on at the end of the last answer, on each side."""
        conversation = Conversation.from_json(kept)
        if not conversation.turns or not any(conversation.turns[-1].sides):
            return
        options = self._form.read(form, language)
        sides = options.sides[: len(conversation.turns[-1].sides)]
        async for update in self._drawn(conversation, replace(options, sides=sides), language, goes_on=True):
            yield update

    async def _answer(
        self, conversation: Conversation, question: str, language: str, options: ChatOptions
    ) -> AsyncIterator[Update]:
        if not options.sides[0].model:
            options = await self._with_models(options, language)
        conversation = replace(conversation, system=options.system).asked(question, len(options.sides))
        async for update in self._drawn(conversation, options, language):
            yield update

    async def _with_models(self, options: ChatOptions, language: str) -> ChatOptions:
        """For a page that was opened when nothing was served yet. Raises gr.Error where that is so still."""
        served = await served_models(self._shared.api)
        if not served.chat:
            why = failure_sentence(served.failure, language)[0] if served.failure else told_waiting(served, language)
            raise gr.Error(escape(translate(language, "chat.no_model", why=why)), print_exception=False)
        sides = tuple(replace(side, model=side.model or served.chat[0]) for side in options.sides)
        return replace(options, sides=sides, reward_model=options.reward_model or next(iter(served.reward), ""))

    async def _drawn(
        self, conversation: Conversation, options: ChatOptions, language: str, *, goes_on: bool = False
    ) -> AsyncIterator[Update]:
        """Answers as they are written, then their rewards."""
        drafts = new_drafts()
        drawing = draw_answers(self._shared.api, conversation, options.sides, options.systems, goes_on=goes_on)
        # The request is on its way while the question is being drawn.
        begun = asyncio.ensure_future(anext(drawing, conversation))
        try:
            yield {**self._shown(conversation, language), self._question: "", **self._busy(True)}
            conversation = await begun
            yield self._shown(conversation, language, drafts)
            async for conversation in drawing:
                yield self._shown(conversation, language, drafts)
        finally:
            begun.cancel()
            await asyncio.gather(begun, return_exceptions=True)
            await drawing.aclose()
        if options.reward_model:
            try:
                # The answer that was written on stays the first: the conversation goes on from it.
                conversation = await reward_answers(
                    self._shared.api, conversation, options.reward_model, is_ranked=not goes_on
                )
            except ApiFailure as failure:
                why = failure_sentence(failure, language)[0]
                gr.Warning(escape(translate(language, "chat.no_reward", why=why)))
        yield {**self._shown(conversation, language), **self._busy(False)}

    def _shown(self, conversation: Conversation, language: str, drafts: Drafts | None = None) -> Update:
        bots: Update = {
            bot: messages_of(conversation, side, language, drafts)
            for side, bot in enumerate(self._bots)
            if side == 0 or drafts is None or _has_two_sides(conversation)
        }
        return {**bots, self._keeper: conversation.to_json()}

    def _busy(self, is_busy: bool) -> Update:
        return {self._send: gr.update(visible=not is_busy), self._stop: gr.update(visible=is_busy)}

    def _stopped(self, kept: Any, language: str) -> Update:
        return {**self._shown(Conversation.from_json(kept).stopped(), language), **self._busy(False)}

    def _compared(self, wanted: bool, kept: Any, language: str) -> Update:
        """The second side as the conversation has it so far."""
        conversation = Conversation.from_json(kept)
        return {self._bots[1]: gr.update(value=messages_of(conversation, 1, language), visible=wanted)}

    def _fresh(self, language: str, compare: bool) -> Update:
        return self._opened(Conversation(), language, compare)

    def _reopened(self, kept: Any, language: str, compare: bool) -> Update:
        """From the list, or after a reload: an answer that was being written is marked as stopped."""
        return self._opened(Conversation.from_json(kept).stopped(), language, compare)

    def _opened(self, conversation: Conversation, language: str, compare: bool) -> Update:
        """A conversation that was last asked side by side is continued that way."""
        both = bool(compare) or len(conversation.turns[-1].sides if conversation.turns else ()) > 1
        return {
            self._bots[0]: messages_of(conversation, 0, language),
            self._bots[1]: gr.update(value=messages_of(conversation, 1, language), visible=both),
            self._form.compare: both,
            self._keeper: conversation.to_json(),
            **self._busy(False),
        }

    def _undo(self, kept: Any, language: str) -> Update:
        """The last question goes back to where it was written."""
        conversation = Conversation.from_json(kept)
        question = conversation.turns[-1].question if conversation.turns else ""
        cut = conversation.cut(max(0, len(conversation.turns) - 1))
        return {**self._shown(cut, language), self._question: question}


def _has_two_sides(conversation: Conversation) -> bool:
    return any(len(turn.sides) > 1 for turn in conversation.turns)
