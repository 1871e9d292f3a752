"""Schemas of tools, tool choices and tool calls in OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.schema import Wire, type_of

__all__ = [
    "MAX_TOOLS",
    "AllowedTools",
    "CalledFunction",
    "NamedTool",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "ToolName",
    "as_json",
    "callable_tools",
    "check_choice",
    "kind_of_choice",
    "must_call",
    "offered",
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
            said = "a schema of type {kind} can't describe a function; one of type 'object' is needed"
            raise PydanticCustomError("parameters", said, {"kind": repr(kind)[:100]})
        return schema


class Tool(Wire):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class FunctionName(Wire):
    """A function by its name."""

    name: ToolName


def kind_of_choice(value: Any) -> str:
    """The tag of a `tool_choice` that is an object. What is tagged `function` refuses any other type by its name."""
    return "allowed_tools" if type_of(value) == "allowed_tools" else "function"


class NamedTool(Wire):
    """`tool_choice`: this tool must be called. Hugging Face's clients leave the type out."""

    type: Literal["function"] = "function"
    function: FunctionName

    @model_validator(mode="before")
    @classmethod
    def _only_functions(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind != "function":
            message = "'tool_choice' is an object of type '{kind}'; function and allowed_tools are known"
            raise PydanticCustomError("part", message, {"kind": kind[:40]})
        return data


class AllowedNames(Wire):
    """Which tools may be called, and whether one must be."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


class AllowedTools(Wire):
    """`tool_choice`: the model sees all tools and may call these."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedNames

    @property
    def names(self) -> frozenset[str]:
        """Of the tools."""
        return frozenset(one.function.name for one in self.allowed_tools.tools)


ToolChoice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedTool, Tag("function")] | Annotated[AllowedTools, Tag("allowed_tools")],
        Discriminator(kind_of_choice),
    ]
)


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


def callable_tools(tools: Sequence[Tool], choice: ToolChoice | None) -> tuple[Tool, ...]:
    """Those of `tools` that the answer may call."""
    if isinstance(choice, NamedTool):
        return tuple(tool for tool in tools if tool.function.name == choice.function.name)
    if isinstance(choice, AllowedTools):
        return tuple(tool for tool in tools if tool.function.name in choice.names)
    return tuple(tools)


def must_call(choice: ToolChoice | None) -> bool:
    """Whether the answer is a call."""
    if isinstance(choice, AllowedTools):
        return choice.allowed_tools.mode == "required"
    return choice not in (None, "none", "auto")


def check_choice(tools: Sequence[Tool] | None, choice: ToolChoice | None) -> None:
    """Raises PydanticCustomError where tools and choice do not go together."""
    names = [tool.function.name for tool in tools or ()]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PydanticCustomError("tools", "'tools' has two functions named '{name}'", {"name": twice})
    if choice in (None, "none") or (choice == "auto" and not names):
        return
    if not names:
        raise PydanticCustomError("tool_choice", "'tool_choice' asks for a tool, and 'tools' has none")
    chosen = {choice.function.name} if isinstance(choice, NamedTool) else set[str]()
    chosen |= choice.names if isinstance(choice, AllowedTools) else set()
    for name in sorted(chosen.difference(names)):
        raise PydanticCustomError(
            "tool_choice",
            "'tool_choice' names '{name}'; 'tools' has {names}",
            {"name": name, "names": ", ".join(names[:20])},
        )


def as_json(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """For the chat template: as the client wrote them."""
    return [tool.model_dump(mode="json", exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]
