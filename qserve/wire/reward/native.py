"""POST /v1/reward: qserve's own request, which every kind of reward can be asked by."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import TokenIds, Wire
from qserve.wire.reward.fields import (
    BESIDE_MESSAGES,
    MAX_TEXTS,
    STRING_OR_LIST,
    Conversation,
    Conversations,
    RewardFields,
    Scored,
    ScoredStrings,
    Strings,
    TemplateVariables,
    Tools,
    one_of,
)
from qserve.wire.schema_rules import absent, given, together

__all__ = ["Normalization", "PreferencePair", "RewardRequest"]


_WHOLE = {"conversations": "array", "texts": "array", "token_ids": "array", "pairs": "array"}
_REWARD_SCHEMA: dict[str, Any] = {
    "oneOf": [
        *(
            together(
                given(**{name: kind}),
                absent("prompt", "responses", *BESIDE_MESSAGES, *(other for other in _WHOLE if other != name)),
            )
            for name, kind in _WHOLE.items()
        ),
        together(given(prompt=STRING_OR_LIST, responses="array"), absent(*_WHOLE)),
    ]
}
_PAIR_SCHEMA: dict[str, Any] = {
    "anyOf": [
        given(prompt=STRING_OR_LIST),
        given(chosen="array", rejected="array"),
        given(chosen="string", rejected="string"),
    ]
}


class Normalization(Wire):
    """(reward - mean) / std. The bounds keep every quotient a number that JSON has."""

    mean: float = Field(ge=-1e30, le=1e30)
    std: float = Field(ge=1e-30)


class PreferencePair(Wire):
    """Two answers to one prompt, as preference data sets have them. Beside a prompt both may be whole conversations
    that begin with it; without one they are, or both are whole texts.
    """

    model_config = ConfigDict(json_schema_extra=_PAIR_SCHEMA)

    prompt: str | Conversation | None = None
    chosen: str | Conversation
    rejected: str | Conversation
    tools: Tools | str | None = None
    chat_template_kwargs: TemplateVariables | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.prompt is None and isinstance(self.chosen, str) != isinstance(self.rejected, str):
            said = "a pair without 'prompt' needs conversations, or whole texts, as 'chosen' and 'rejected'"
            raise PydanticCustomError("pair", said)
        return self


class RewardRequest(RewardFields):
    """POST /v1/reward: whole texts, or several answers to one prompt, or pairs of them.

    An answer that is a list of strings is a list of steps: a process reward model scores each.
    """

    model_config = ConfigDict(json_schema_extra=_REWARD_SCHEMA)

    conversations: Conversations | None = None
    texts: ScoredStrings | None = Field(None, description="templated already")
    token_ids: Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)] | None = None
    prompt: str | Conversation | None = None
    responses: Annotated[list[Scored | ScoredStrings], Field(min_length=1, fail_fast=True)] | None = None
    references: str | Strings | None = Field(
        None, description="for rules and judges: what answers are compared with, one for all or one for each (or pair)"
    )
    pairs: Annotated[list[PreferencePair], Field(min_length=1, max_length=MAX_TEXTS // 2, fail_fast=True)] | None = None
    normalize: bool | Normalization = False
    tools: Tools | str | None = Field(None, description="for the chat template: of 'prompt' with 'responses'")
    chat_template_kwargs: TemplateVariables | None = None
    truncate: Literal["left", "right", "refuse"] | None = None
    max_length: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        what = one_of(self, "conversations", "texts", "token_ids", "responses", "pairs")
        if (what == "responses") != (self.prompt is not None):
            raise PydanticCustomError("prompt", "'prompt' and 'responses' belong together")
        if what != "responses" and (self.tools is not None or self.chat_template_kwargs is not None):
            raise PydanticCustomError(
                "tools",
                "'tools' and 'chat_template_kwargs' of a request belong to 'prompt' with 'responses'; each pair, and "
                "each conversation as an object with 'messages', has its own",
            )
        return self

    def num_texts(self) -> int:
        if self.pairs is not None:
            return 2 * len(self.pairs)
        return len(self.conversations or self.texts or self.token_ids or self.responses or ())
