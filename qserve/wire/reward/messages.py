"""The turns of a conversation that is scored, as clients and as data sets write them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue
from pydantic_core import PydanticCustomError

from qserve.rows.fields import Fields, RowError
from qserve.rows.tools import calls_of
from qserve.wire.messages import MAX_TOOL_CALLS, ConversationMessage
from qserve.wire.schema import Wire

__all__ = ["ScoredMessage"]


class ScoredFunction(Wire):
    """`arguments` are an object, as trainers have it, or one as JSON text, as clients do."""

    name: str = Field(min_length=1)
    arguments: str | dict[str, JsonValue] | None = None


class ScoredCall(Wire):
    """A call of a data set has no id."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: ScoredFunction
    index: int | None = Field(None, description="harmless: comes back from a stream")


class ScoredMessage(ConversationMessage):
    """A turn, whose calls may be those of a data set."""

    tool_calls: Annotated[list[ScoredCall], Field(max_length=MAX_TOOL_CALLS, fail_fast=True)] | None = None  # type: ignore[assignment]

    def _check_calls(self) -> None:
        try:
            self._calls_for_template()
        except RowError as error:
            raise PydanticCustomError("tool_calls", "{why}", {"why": str(error)}) from None

    def _calls_for_template(self) -> list[dict[str, Any]]:
        return calls_of([call.model_dump(exclude_none=True) for call in self.tool_calls or ()], Fields({}))

    def for_template(self) -> dict[str, Any]:
        """As rows of data sets are read: names are kept, for templates that write them."""
        kept = {"name": self.name, "tool_call_id": self.tool_call_id}
        return {**super().for_template(), **{name: value for name, value in kept.items() if value}}
