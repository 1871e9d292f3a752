"""Schemas of tools, tool choices and tool calls in OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator
from pydantic_core import PydanticCustomError

from qserve.wire.schema import Wire

__all__ = [
    "MAX_TOOLS",
    "CalledFunction",
    "NamedTool",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolName",
    "as_json",
    "check_choice",
    "offered",
    "without_descriptions",
]

MAX_TOOLS = 512
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.:-]{1,128}$")]


class Function(Wire):
    """A function that the client runs. `parameters` is a JSON schema of the arguments' object; absent: none."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = Field(None, description="harmless: arguments always follow the schema")

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, schema: dict[str, Any] | None) -> dict[str, Any] | None:
        """Raises PydanticCustomError for a schema of anything else: arguments have names."""
        kind = (schema or {}).get("type", "object")
        if kind != "object":
            said = "a schema of type {kind} is no function's; one of type 'object' is needed"
            raise PydanticCustomError("parameters", said, {"kind": repr(kind)[:100]})
        return schema


class Tool(Wire):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionName(Wire):
    """A function by its name."""

    name: ToolName


class NamedTool(Wire):
    """`tool_choice`: this tool must be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class CalledFunction(Wire):
    """What a model called; `arguments` is JSON as text."""

    name: str
    arguments: str


class ToolCall(Wire):
    """A call in an assistant's message that a client sends back."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = Field(None, description="harmless: comes back from a stream")


def offered(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> tuple[Tool, ...]:
    """The tools that the answer may call; none where the choice is `none`."""
    return () if not tools or choice == "none" else tuple(tools)


def check_choice(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Raises PydanticCustomError where tools and choice do not go together."""
    names = [tool.function.name for tool in tools or ()]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PydanticCustomError("tools", "'tools' holds two functions named '{name}'", {"name": twice})
    if choice in (None, "none") or (choice == "auto" and not names):
        return
    if not names:
        raise PydanticCustomError("tool_choice", "'tool_choice' asks for a tool, and 'tools' holds none")
    if isinstance(choice, NamedTool) and choice.function.name not in names:
        raise PydanticCustomError(
            "tool_choice",
            "'tool_choice' names '{name}'; 'tools' holds {names}",
            {"name": choice.function.name, "names": ", ".join(names[:20])},
        )


def without_descriptions(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """What reading calls takes of them."""
    return [tool.model_dump(mode="json", exclude_none=True, exclude={"function": {"description"}}) for tool in tools]


def as_json(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """For the chat template: as the client wrote them."""
    return [tool.model_dump(mode="json", exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
