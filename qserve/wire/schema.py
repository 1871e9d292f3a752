"""The base of all request schemas: strict names and types, precise errors.

The rule of the house: a field is used, is harmless, or is refused by name. `extra="forbid"` refuses the unknown ones;
fields that we know and do not serve are refused with a sentence of their own (`refused_fields`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError, from_json, to_json

from qserve.encodings import wrong_byte
from qserve.wire.agent_fields import asks_for_nothing
from qserve.wire.body_scan import not_json, utf8_json
from qserve.wire.hints import hint_of
from qserve.wire.refused_fields import REFUSED
from qserve.wire.validation import from_validation

__all__ = [
    "INT64_MAX",
    "MAX_STOP_CHARS",
    "MAX_TOKEN_ID",
    "VERBOSITIES",
    "CacheSalt",
    "NonEmptyString",
    "OnlyFalse",
    "OnlyOne",
    "OnlyZero",
    "PromptText",
    "StopString",
    "TokenId",
    "TokenIds",
    "Verbosity",
    "Wire",
    "type_of",
]

INT64_MAX = 2**63 - 1
# Looked for after every token.
MAX_STOP_CHARS = 4096


def _check_bool(value: Any) -> Any:
    if not isinstance(value, bool):
        raise PydanticCustomError("bool_type", "not true or false")
    return value


# Lists stop at their first wrong item: an error for each of a million items took minutes and gigabytes.
# The engine says of an empty one that it has no tokens.
PromptText = Annotated[str, WithJsonSchema({"type": "string", "minLength": 1})]
NonEmptyString = Annotated[str, Field(min_length=1)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
CacheSalt = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^@/\\\x00]+$")]
"""As vLLM bounds it: a name that parts one cached prefix from another."""
# A Literal would take true for 1, and 0 for false.
OnlyOne = Annotated[int, Field(ge=1, le=1)]
OnlyZero = Annotated[int, Field(ge=0, le=0)]
OnlyFalse = Annotated[Literal[False], BeforeValidator(_check_bool)]
VERBOSITIES = ("low", "medium", "high")
"""Of OpenAI's `verbosity`, which its clients send to any model."""
Verbosity = Annotated[Literal["low", "medium", "high"], Field(description="harmless: a hint that no Qwen model reads")]
MAX_TOKEN_ID = 2**31 - 1
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
# More names than that in one object are no request; naming each as an error would take seconds.
_MAX_NAMES = 4096


def _with_whole_numbers(value: Any) -> Any:
    """Floats without a fraction as integers, wherever they stand."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_whole_numbers(one) for one in value]
    if isinstance(value, dict):
        return {name: _with_whole_numbers(one) for name, one in value.items()}
    return value


def type_of(value: Any) -> Any:
    """The `type` of an object, before or after it was read as a schema; None where it says none."""
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


class Wire(BaseModel):
    """Strict about names and types: `"5"` is no integer, an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)
    refused: ClassVar[Mapping[str, str]] = REFUSED

    @model_validator(mode="before")
    @classmethod
    def _refuse_by_name(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for one in (data, *data.values()):
                if isinstance(one, dict) and len(one) > _MAX_NAMES:
                    raise PydanticCustomError("too_many_names", f"an object has more than {_MAX_NAMES} names")
            # An explicit null means "not given": clients write out every field they know.
            has_null = None in data.values()
            given = {name: value for name, value in data.items() if value is not None} if has_null else data
            if not given.keys().isdisjoint(cls.refused.keys()):
                return cls._allowed(given)
            return given
        return data

    @classmethod
    def _allowed(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Without names that are refused and ask for nothing; raises for the first that asks for something."""
        given = dict(given)
        for name in [name for name in given if name in cls.refused and name not in cls.model_fields]:
            if not asks_for_nothing(name, given[name]):
                raise PydanticCustomError(
                    "unsupported_field", "'{field}' is not supported: {why}", {"field": name, "why": cls.refused[name]}
                )
            del given[name]
        return given

    @classmethod
    def parse(cls, body: bytes) -> Self:
        """The request that a body holds, whatever its bytes are. Raises as `read`, also for what is no text in UTF-8; a
        byte order mark is passed over.
        """
        return cls.read(utf8_json(body))

    @classmethod
    def read(cls, body: bytes) -> Self:
        """The request that a body holds after `utf8_json`. Raises ApiError 400 that names the first wrong field.

        16.0 is a whole number, as JSON Schema has it and some languages write it: looked for where a reading failed,
        since it would cost every request of a million ids.
        """
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            refused = error
        kinds = {item["type"] for item in refused.errors(include_url=False, include_input=False)}
        if "json_invalid" in kinds and wrong_byte(body) is not None:
            raise not_json(body, refused)
        value = None if "json_invalid" in kinds else from_json(body)
        if "int_type" in kinds:
            try:
                return cls.model_validate_json(to_json(_with_whole_numbers(value)))
            except ValidationError as error:
                refused = error
        raise from_validation(refused, value, partial(hint_of, cls))

    @classmethod
    def known_names(cls) -> frozenset[str]:
        """Names that a body may have at its top, those included that are refused with a sentence of their own."""
        aliases = {field.alias for field in cls.model_fields.values() if field.alias is not None}
        return frozenset({*cls.model_fields, *aliases, *cls.refused})
