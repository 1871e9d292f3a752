"""What several of the requests share: kinds of texts, their number, and vLLM's own fields."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.openai import NonEmptyString, OnlyZero, TokenIds, Wire
from qserve.wire.reward.messages import ScoredMessage
from qserve.wire.schema_rules import absent, given, together
from qserve.wire.tools import MAX_TOOLS

__all__ = [
    "ACTIVATION_SCHEMA",
    "BESIDE_MESSAGES",
    "BULK_SLOTS",
    "MAX_TEXTS",
    "STRING_OR_LIST",
    "Conversation",
    "ConversationObject",
    "Conversations",
    "Cut",
    "Input",
    "RewardFields",
    "Scored",
    "ScoredStrings",
    "ScoredTexts",
    "Strings",
    "TemplateVariables",
    "Texts",
    "Tools",
    "VllmFields",
    "as_list",
    "num_slots",
    "num_texts",
    "one_of",
    "refuse",
]


MAX_TEXTS = 32_768
"""Texts of one request. More would keep gigabytes of objects in memory while nobody gains by it: send several."""
_TEXTS_A_SLOT = 64
BULK_SLOTS = 16
"""Places in the queue that a request with a thousand texts or more takes. The worker shares its time out between
requests; the places bound how many of them it holds."""

# A text that is scored has at least one token; whoever makes a job of it says so with its place.
Scored = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
Conversation = Annotated[list[ScoredMessage], Field(min_length=1, fail_fast=True)]
STRING_OR_LIST = ["string", "array"]
"""The types of a field, for rules between fields (`wire/schema_rules.py`)."""
BESIDE_MESSAGES = ("tools", "chat_template_kwargs")
"""Fields that go with messages only."""
Tools = Annotated[list[dict[str, JsonValue]], Field(max_length=MAX_TOOLS, fail_fast=True)]
TemplateVariables = Annotated[dict[str, JsonValue], Field(description="variables of the chat template")]


_OBJECT_SCHEMA: dict[str, Any] = {
    "oneOf": [
        together(given(messages="array"), absent("text", "add_eos")),
        together(given(text="string"), absent("messages", *BESIDE_MESSAGES)),
    ]
}


class ConversationObject(Wire):
    """A conversation with what the chat template is told beside it, or a whole text, which is templated already and
    ends in the tokenizer's EOS where `add_eos` says so.
    """

    model_config = ConfigDict(json_schema_extra=_OBJECT_SCHEMA)

    messages: Conversation | None = None
    tools: Tools | str | None = Field(None, description="of the messages; also as JSON text")
    chat_template_kwargs: TemplateVariables | None = Field(None, description="of the messages")
    text: Scored | None = None
    add_eos: bool | None = Field(None, description="of the text")

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        what = one_of(self, "messages", "text")
        for name in ("add_eos",) if what == "messages" else BESIDE_MESSAGES:
            if getattr(self, name) is not None:
                raise PydanticCustomError("belongs", f"'{name}' does not belong to '{what}'")
        return self


Conversations = Annotated[
    list[Conversation | ConversationObject], Field(min_length=1, max_length=MAX_TEXTS, fail_fast=True)
]
Strings = Annotated[list[str], Field(min_length=1, fail_fast=True)]
ScoredStrings = Annotated[list[Scored], Field(min_length=1, fail_fast=True)]
Input = Scored | TokenIds | ScoredStrings | Annotated[list[TokenIds], Field(min_length=1, fail_fast=True)]
Texts = str | Strings
ScoredTexts = Scored | ScoredStrings
Cut = Literal["left", "right"]
"""Which end of a text that is too long is cut off, as `--truncate` says it."""


def one_of(value: Wire, *names: str) -> str:
    """The one of these fields that was given; raises where there is none or more than one."""
    found = [name for name in names if getattr(value, name) is not None]
    if len(found) != 1:
        wanted = ", ".join(f"'{name}'" for name in names)
        have = " and ".join(f"'{name}'" for name in found) if found else "none"
        raise PydanticCustomError("one_of", f"give one of {wanted}; this request has {have}")
    return found[0]


def num_slots(num_texts: int) -> int:
    """Places in the queue of a request: one for every 64 texts begun."""
    return min(BULK_SLOTS, -(-num_texts // _TEXTS_A_SLOT))


class RewardFields(Wire):
    """`model` may be left out where one reward model is served."""

    model: NonEmptyString | None = None
    user: str | None = Field(None, description="harmless: taken and not used")

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if (count := self.num_texts()) > MAX_TEXTS:
            raise PydanticCustomError(
                "too_many_texts", f"the request has {count} texts and may have {MAX_TEXTS}; send several requests"
            )
        return self

    def num_texts(self) -> int:
        """Texts to score: a pair is two."""
        raise NotImplementedError


ACTIVATION_SCHEMA: dict[str, Any] = {
    "anyOf": [
        absent("activation"),
        absent("use_activation"),
        *({"properties": {"activation": {"const": one}, "use_activation": {"const": one}}} for one in (True, False)),
    ]
}
"""The two names of one field do not differ."""


class VllmFields(RewardFields):
    """Fields of vLLM's pooling requests. `activation` is what vLLM up to 0.11 and verl call `use_activation`."""

    use_activation: bool | None = None
    activation: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    truncation_side: Cut | None = None
    add_special_tokens: bool | None = Field(None, description="harmless: the text's own BOS is never doubled")
    priority: OnlyZero | None = None

    @model_validator(mode="after")
    def _same_activation(self) -> Self:
        if None not in (self.use_activation, self.activation) and self.use_activation != self.activation:
            raise PydanticCustomError("activation", "'activation' is the old name of 'use_activation'; they differ")
        return self

    @property
    def raw(self) -> bool:
        """Whether the reward is wanted as the head gives it; else its sigmoid, vLLM's default."""
        return False in (self.use_activation, self.activation)


def as_list(value: str | list[str] | None) -> list[str]:
    """One text, or several."""
    return [value] if isinstance(value, str) else list(value or ())


def num_texts(value: Any) -> int:
    """How many texts a string, token ids, or a list of either is."""
    return len(value) if isinstance(value, list) and not isinstance(value[0], int) else 1


def refuse(value: Wire, where: str, *names: str) -> None:
    for name in names:
        if getattr(value, name) is not None:
            raise PydanticCustomError("unsupported_field", f"'{name}' is not a field of {where}", {"field": name})
