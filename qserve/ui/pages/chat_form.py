"""The settings beside a conversation: models, system prompt, sampling, best of N, and the second side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gradio as gr

from qserve.ui.chat.answers import Sampling
from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages.fields import number_field, number_of, whole_number_of
from qserve.ui.strings import marked

__all__ = ["ChatForm", "ChatOptions", "chat_form"]

_MOST_ANSWERS = 16
_NUMBERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed")
_WHOLE = ("top_k", "max_tokens", "seed")
_THINKING = {"auto": None, "on": True, "off": False}


@dataclass(frozen=True)
class ChatOptions:
    """What the form says: how each side answers, its system prompt, and who scores ("" nobody)."""

    sides: tuple[Sampling, ...]
    systems: tuple[str, ...]
    reward_model: str

    @property
    def system(self) -> str:
        """The first side's."""
        return self.systems[0]


@dataclass(frozen=True)
class ChatForm:
    """The form's components, in the order in which Gradio hands their values over."""

    model: Any
    reward_model: Any
    system: Any
    numbers: tuple[Any, ...]
    thinking: Any
    best_of: Any
    compare: Any
    second_model: Any
    second_temperature: Any
    second_system: Any

    @property
    def inputs(self) -> list[Any]:
        """Every component whose value `read` wants."""
        return [
            self.model,
            self.reward_model,
            self.system,
            self.thinking,
            self.best_of,
            self.compare,
            self.second_model,
            self.second_temperature,
            self.second_system,
            *self.numbers,
        ]

    @property
    def outputs(self) -> list[Any]:
        """Every component that `show` updates."""
        return [self.model, self.second_model, self.reward_model, self.best_of]

    def read(self, values: Sequence[Any], language: str) -> ChatOptions:
        """The wish that the values of `inputs` express. Raises gr.Error for a number that is none."""
        (model, reward_model, system, thinking, best_of, compare, second_model, temperature, second_system), texts = (
            values[:9],
            values[9:],
        )
        numbers: dict[str, Any] = {
            name: (whole_number_of if name in _WHOLE else number_of)(text, f"chat.{name}", language)
            for name, text in zip(_NUMBERS, texts, strict=True)
        }
        num_answers = int(best_of or 1) if reward_model else 1
        first = Sampling(model=model or "", thinking=_THINKING.get(thinking), num_answers=num_answers, **numbers)
        if not compare:
            return ChatOptions((first,), (system or "",), reward_model or "")
        second_temperature = number_of(temperature, "chat.second_temperature", language)
        other = replace(first, model=second_model or first.model)
        if second_temperature is not None:
            other = replace(other, temperature=second_temperature)
        return ChatOptions((first, other), (system or "", second_system or system or ""), reward_model or "")

    def show(self, served: ServedModels) -> dict[Any, Any]:
        """Updates for what is served: names of models, and nothing about rewards where there are none."""
        chat, reward = list(served.chat), list(served.reward)
        first = chat[0] if chat else None
        return {
            self.model: gr.update(choices=chat, value=first),
            self.second_model: gr.update(choices=chat, value=chat[1] if len(chat) > 1 else first),
            self.reward_model: gr.update(choices=reward, value=reward[0] if reward else None, visible=len(reward) > 1),
            self.best_of: gr.update(visible=bool(reward)),
        }


def chat_form() -> ChatForm:
    """Draws the form."""
    model = gr.Dropdown([], label=marked("chat.model"), elem_id="qs-model")
    reward_model = gr.Dropdown([], label=marked("score.model"), visible=False)
    best_of = gr.Slider(
        1,
        _MOST_ANSWERS,
        value=1,
        step=1,
        label=marked("chat.best_of"),
        info=marked("chat.best_of.info"),
        visible=False,
        elem_id="qs-best-of",
        buttons=[],
    )
    with gr.Accordion(marked("chat.settings"), open=False, elem_id="qs-settings"):
        system = gr.Textbox(label=marked("chat.system"), lines=2, max_lines=8, elem_id="qs-system")
        thinking = gr.Radio(
            [(marked(f"chat.thinking.{name}"), name) for name in _THINKING], value="auto", label=marked("chat.thinking")
        )
        with gr.Row(elem_classes="qs-numbers"):
            numbers = tuple(_number(name) for name in _NUMBERS)
    with gr.Accordion(marked("chat.compare"), open=False, elem_id="qs-compare"):
        compare = gr.Checkbox(False, label=marked("chat.compare"), info=marked("chat.compare.info"))
        second_model = gr.Dropdown([], label=marked("chat.second_model"))
        second_temperature = _number("second_temperature")
        second_system = gr.Textbox(label=marked("chat.second_system"), lines=1, max_lines=8)
    return ChatForm(
        model,
        reward_model,
        system,
        numbers,
        thinking,
        best_of,
        compare,
        second_model,
        second_temperature,
        second_system,
    )


def _number(name: str) -> Any:
    return number_field(f"chat.{name}", "chat.default", f"qs-{name.replace('_', '-')}")
