"""The tools of a Responses request (functions, functions in namespaces, custom tools), and each as a chat's function.

A function of a namespace is `<namespace>__<name>` to the model, as vLLM has it. A custom tool takes text, which is the
one argument of a function, `input`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag, model_validator
from pydantic_core import PydanticCustomError

from qserve.wire.schema import OnlyFalse, Wire, type_of
from qserve.wire.tools import MAX_TOOLS, ToolName, kind_of_choice

__all__ = [
    "INPUT",
    "SERVER_TOOLS",
    "AllowedTools",
    "Choice",
    "NamedTool",
    "ResponsesTool",
    "chosen_name",
    "custom_arguments",
    "flat_name",
    "offered",
    "server_tool_alone",
    "with_grammar",
]

INPUT = "input"
"""The argument of a custom tool."""
SERVER_TOOLS = ("web_search", "web_search_preview")
"""Agents offer them with their own tools unless a user switches them off. They are left out: no answer needs them."""
_SERVED = "describe functions, namespaces of functions, or custom tools, which the client runs"
_MAX_GRAMMAR_CHARS = 64 * 1024

Deferred = Annotated[OnlyFalse | None, Field(description="only false: there is no search for tools")]
Callers = Annotated[list[Literal["direct"]] | None, Field(description="harmless: only the model calls")]


class _Tool(Wire):
    description: str | None = None
    defer_loading: Deferred = None
    allowed_callers: Callers = None


class FunctionTool(_Tool):
    """A function that the client runs."""

    type: Literal["function"]
    name: ToolName
    parameters: dict[str, JsonValue] | None = None
    strict: bool | None = Field(None, description="harmless: arguments always follow the schema")
    output_schema: dict[str, JsonValue] | None = Field(None, description="harmless: for the client that runs it")


class PlainInput(Wire):
    """Any text."""

    type: Literal["text"]


class GrammarInput(Wire):
    """Text of a grammar."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: str = Field(min_length=1, max_length=_MAX_GRAMMAR_CHARS)


class CustomTool(_Tool):
    """A tool that takes text."""

    type: Literal["custom"]
    name: ToolName
    format: Annotated[PlainInput | GrammarInput, Field(discriminator="type")] | None = None


class ServerTool(Wire):
    """A tool that the server would run. It is left out (`SERVER_TOOLS`)."""

    type: Literal["web_search", "web_search_preview"]
    external_web_access: bool | None = None
    filters: dict[str, JsonValue] | None = None
    user_location: dict[str, JsonValue] | None = None
    search_context_size: Literal["low", "medium", "high"] | None = None
    search_content_types: list[str] | None = None


class UnknownTool(Wire):
    """Refused, with a sentence."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, data: Any) -> Any:
        kind = str(data.get("type") if isinstance(data, dict) else type(data).__name__)[:40]
        raise PydanticCustomError("part", "the server has no tool of type '{kind}'; " + _SERVED, {"kind": kind})


def _kind(value: Any) -> str:
    kind = type_of(value)
    if kind in SERVER_TOOLS:
        return "server"
    return kind if kind in ("function", "custom", "namespace") else "unknown"


_Inner = (
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[UnknownTool, Tag("unknown")]
)


class NamespaceTool(Wire):
    """Functions under one name; its description is what the client's own user reads."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[
        list[Annotated[_Inner, Discriminator(lambda value: "unknown" if _kind(value) == "server" else _kind(value))]],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


ResponsesTool = Annotated[
    Annotated[FunctionTool, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[NamespaceTool, Tag("namespace")]
    | Annotated[ServerTool, Tag("server")]
    | Annotated[UnknownTool, Tag("unknown")],
    Discriminator(_kind),
]


class NamedTool(Wire):
    """`tool_choice`: this tool must be called."""

    type: Literal["function", "custom"]
    name: ToolName
    namespace: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_tools_of_the_client(cls, data: Any) -> Any:
        kind = data.get("type") if isinstance(data, dict) else None
        if isinstance(kind, str) and kind not in ("function", "custom"):
            message = "'tool_choice' is an object of type '{kind}'; function, custom and allowed_tools are known"
            raise PydanticCustomError("part", message, {"kind": kind[:40]})
        return data


class AllowedTools(Wire):
    """`tool_choice`: the model sees all tools and may call these."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


Choice = (
    Literal["none", "auto", "required"]
    | Annotated[
        Annotated[NamedTool, Tag("function")] | Annotated[AllowedTools, Tag("allowed_tools")],
        Discriminator(kind_of_choice),
    ]
)


@dataclass(frozen=True)
class OfferedTool:
    """A tool that the model may call: `name` as the client has it, below its `namespace`."""

    name: str
    namespace: str | None
    tool: FunctionTool | CustomTool

    @property
    def flat(self) -> str:
        """Its name to the model."""
        return flat_name(self.namespace, self.name)

    @property
    def lark(self) -> str | None:
        """The grammar of its text, if it has one."""
        given = self.tool.format if isinstance(self.tool, CustomTool) else None
        return given.definition if isinstance(given, GrammarInput) and given.syntax == "lark" else None

    def to_chat(self) -> dict[str, Any]:
        """As a chat request has it."""
        tool = self.tool
        if isinstance(tool, CustomTool):
            given = tool.format.model_dump() if tool.format is not None else None
            described: str | None = with_grammar(tool.description, given)
            parameters: Any = _parameters_of_text(tool)
        else:
            described, parameters = tool.description, tool.parameters
        function = {"name": self.flat, "description": described, "parameters": parameters}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def offered(tools: Sequence[Any]) -> Iterator[OfferedTool]:
    """Every tool that the model is shown, in the request's order."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            inner = [one for one in tool.tools if isinstance(one, (FunctionTool, CustomTool))]
            yield from (OfferedTool(one.name, tool.name, one) for one in inner)
        elif isinstance(tool, (FunctionTool, CustomTool)):
            yield OfferedTool(tool.name, None, tool)


def server_tool_alone(kinds: Sequence[Any]) -> str | None:
    """The type of a server's tool where a request, whose tools are of these `kinds`, has no tool of the client.

    Then it is what the client wants, and must not be left out.
    """
    return str(kinds[0]) if kinds and all(kind in SERVER_TOOLS for kind in kinds) else None


def flat_name(namespace: str | None, name: str) -> str:
    """A tool's name to the model."""
    return name if namespace is None else f"{namespace}__{name}"


def chosen_name(namespace: str | None, name: str, own_names: Mapping[str, str]) -> str:
    """The name to the model of a tool that a choice names; `own_names` has those within namespaces by such names.

    Without its namespace a name is enough where one tool alone has it, as for vLLM.
    """
    flat = flat_name(namespace, name)
    found = [other for other, own in own_names.items() if own == name]
    return found[0] if namespace is None and flat not in own_names and len(found) == 1 else flat


def custom_arguments(text: str) -> str:
    """A custom tool's text as the arguments of the function that it is."""
    return json.dumps({INPUT: text}, ensure_ascii=False)


def with_grammar(description: str | None, given: Mapping[str, Any] | None) -> str:
    """What the model is told of a custom tool: its grammar, too, which it can't see otherwise."""
    told = [description] if description else []
    if given is not None and given.get("type") == "grammar":
        told.append(f"The input follows this grammar ({given.get('syntax')}):\n{given.get('definition')}")
    return "\n\n".join(told)


def _parameters_of_text(tool: CustomTool) -> dict[str, Any]:
    of_input: dict[str, Any] = {"type": "string"}
    if isinstance(tool.format, GrammarInput) and tool.format.syntax == "regex":
        of_input["pattern"] = f"^(?:{tool.format.definition})$"
    return {"type": "object", "properties": {INPUT: of_input}, "required": [INPUT], "additionalProperties": False}
