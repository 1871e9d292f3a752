"""A document of /rerank as an object: Cohere's and Jina's `{"text"}` with fields that only come back, vLLM's parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field
from pydantic_core import PydanticCustomError

from qserve.wire.openai import Wire

__all__ = ["Document"]

_NO_MEDIA = "this model reads text"


class TextPart(Wire):
    """vLLM's: a piece of a document."""

    type: Literal["text"]
    text: str


class Document(Wire):
    """An object; `scored` is what is read of it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    refused: ClassVar[Mapping[str, str]] = dict.fromkeys(("image", "image_url", "audio", "video"), _NO_MEDIA)

    text: str | None = None
    content: str | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = Field(
        None, description="vLLM's parts of text"
    )

    def check(self, where: str, fields: Sequence[str] | None) -> None:
        """Raises where there is nothing to score, with the place."""
        if fields is None and (self.text is None) == (self.content is None):
            both = "both 'text' and 'content'; one of them is scored" if self.text is not None else "no 'text'"
            raise PydanticCustomError("part", "'{where}' has {both}", {"where": where, "both": both})
        values = self._given()
        for name in fields or ():
            if not isinstance(values.get(name, ""), (str, int, float)):
                message = "'{where}.{name}' must be a string or a number: 'rank_fields' names it"
                raise PydanticCustomError("part", message, {"where": where, "name": name[:100]})
        if fields is not None and not values.keys() & set(fields):
            raise PydanticCustomError("part", "'{where}' has none of the fields of 'rank_fields'", {"where": where})

    def scored(self, fields: Sequence[str] | None) -> str:
        """Its text; with `fields` the values of these that it has, a line each, as Cohere reads them."""
        if fields is not None:
            values = self._given()
            return "\n".join(str(values[name]) for name in fields if name in values)
        if self.content is None or isinstance(self.content, str):
            return self.text or self.content or ""
        return "".join(part.text for part in self.content)

    def told(self) -> dict[str, Any]:
        """As an answer returns it: whole, with the text that a vLLM client looks for."""
        return {**self._given(), "text": self.scored(None)} if self.content is not None else self._given()

    def _given(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)
