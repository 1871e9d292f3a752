"""What vLLM's OpenAPI document does not tell of its requests: fields that it takes and does not read.

Read from vLLM 0.32, `vllm/entrypoints/`. Each is *harmless* (a hint to a service that this is not), *narrowed* to the
values that mean what happens anyway, or *refused* with the reason. Tests hold the tables to the real engine's document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from qserve.engines.vllm.wire.rules import check_salt, check_structure, check_tools
from qserve.wire.engine_fields import EngineFields
from qserve.wire.errors import ApiError
from qserve.wire.openai import MAX_N, MAX_PROMPTS
from qserve.wire.schema import VERBOSITIES
from qserve.wire.structured import GUIDED

__all__ = [
    "ANYWHERE",
    "HARMLESS",
    "NARROWED",
    "REFUSED",
    "UNREAD",
    "check_body",
    "known_names",
    "n_of_chat",
    "n_of_sampling_params",
    "n_per_prompt",
    "one",
    "one_per_conversation",
    "one_per_input",
    "one_per_item",
    "one_per_question",
    "with_structured_outputs",
    "without_no_tools",
]

# Taken on every route, whatever they say: there is one tier, and the engine stores responses where it was told to.
HARMLESS = frozenset(
    {"user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier", "store"}
)
# Names that the document lacks, at any depth, by the beginning of the route.
ANYWHERE: Mapping[str, frozenset[str]] = {
    "/v1/messages": frozenset({"cache_control"}),  # marks for Anthropic's prompt cache: here every prefix is cached
    # Read as `reasoning`, before the schema is looked at; sources of an earlier answer, as OpenAI's answers have them.
    "/v1/chat/completions": frozenset({"reasoning_content", "annotations", "include_obfuscation"}),
    "/v1/completions": frozenset({"include_obfuscation"}),
    "/v1/responses": frozenset({"stream_options", "include_obfuscation"}),  # no event is padded here
}

_RENDER_ONLY = "only the /render routes read it"
_APART = "prefill and decode run in one engine here"
REFUSED: Mapping[str, str] = {
    "request_id": "send the header x-request-id",
    "kv_transfer_params": _APART,
    "ec_transfer_params": _APART,
    "mm_payload": _RENDER_ONLY,
    "return_mm_kwargs": _RENDER_ONLY,
    "return_token_offsets": _RENDER_ONLY,
}

# OpenAI's names that the document lacks, and the only values that ask for nothing the engine lacks.
UNREAD: Mapping[str, tuple[Any, ...]] = {"modalities": (["text"],), "best_of": (1,)}
# Dotted names that it has, and the only values that say what the engine does.
NARROWED: Mapping[str, tuple[Any, ...]] = {
    "priority": (0,),
    "verbosity": VERBOSITIES,
    "reasoning.summary": ("auto",),
    "text.verbosity": VERBOSITIES,
    # Read from the engine's own configuration alone (--structured-outputs-config).
    "structured_outputs.disable_any_whitespace": (False,),
    "structured_outputs.disable_additional_properties": (False,),
    "structured_outputs.whitespace_pattern": (),
    "structured_outputs._backend": (),
    "structured_outputs._backend_was_auto": (),
}


def known_names(fields: EngineFields, path: str) -> frozenset[str] | None:
    """Names that a body for this route may have at its top, those that are refused with a reason included."""
    names = fields.names(path, "POST")
    if names is None:
        return None
    narrowed = {name.partition(".")[0] for name in NARROWED}
    beside = next((names for begin, names in ANYWHERE.items() if path.startswith(begin)), frozenset())
    guided = GUIDED if _takes_guided(path) else {}
    older = {"output_format"} if path.startswith("/v1/messages") else set[str]()
    return frozenset({*names, *HARMLESS, *REFUSED, *UNREAD, *narrowed, *beside, *guided, *older})


def check_body(fields: EngineFields, path: str, body: Mapping[str, Any]) -> None:
    """Raises ApiError 400 for a field that the engine would not read or not follow, and a `model` that is no string."""
    asked = {name: value for name, value in body.items() if name not in HARMLESS and value is not None}
    if not isinstance(asked.get("model", ""), str):
        raise ApiError(400, "'model' must be a string", "invalid_value", "model")
    for name in asked.keys() & REFUSED.keys():
        if not (REFUSED[name] is _RENDER_ONLY and path.endswith("/render")):
            raise ApiError(400, f"'{name}' is not supported: {REFUSED[name]}", "unsupported_field", name)
    for name, allowed in {**UNREAD, **NARROWED}.items():
        _check_narrowed(asked, name, allowed)
        asked.pop(name, None)
    if asked.get("max_tokens") != asked.get("max_completion_tokens", asked.get("max_tokens")) and "max_tokens" in asked:
        raise ApiError(
            400, "'max_tokens' and 'max_completion_tokens' differ; give one of them", "invalid_value", "max_tokens"
        )
    if path.startswith("/v1/messages"):
        asked["tools"] = [_plain_tool(tool) for tool in _list(asked.get("tools"))]
    beside = next((names for begin, names in ANYWHERE.items() if path.startswith(begin)), frozenset())
    fields.check(path, "POST", asked, beside)
    check_tools(path, body)
    check_salt(asked)
    check_structure(asked)


def without_no_tools(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body without what says that there are no tools, which vLLM refuses: an empty list, a free choice of none."""
    if body.get("tools"):
        return body
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    unsaid = {"tools"} | ({"tool_choice"} if kind in (None, "auto", "none") else set())
    if body.get("tools") not in (None, []) or not unsaid & body.keys():
        return body
    return {name: value for name, value in body.items() if name not in unsaid}


def with_structured_outputs(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with `guided_regex` and its like under their new names. Raises ApiError 400 for more than one."""
    given = {kind: body[name] for name, kind in GUIDED.items() if body.get(name) is not None}
    if not _takes_guided(path) or not GUIDED.keys() & body.keys():
        return body
    others = {name: value for name, value in body.items() if name not in GUIDED}
    if not given:
        return others
    if len(given) > 1 or body.get("structured_outputs") is not None:
        names = ", ".join(sorted(GUIDED))
        message = f"'structured_outputs' and its older names {names} each bind the whole answer; give one of them"
        raise ApiError(400, message, "invalid_value", "structured_outputs")
    return {**others, "structured_outputs": given}


def _takes_guided(path: str) -> bool:
    return path in ("/v1/chat/completions", "/v1/completions")


def _check_narrowed(asked: Mapping[str, Any], name: str, allowed: tuple[Any, ...]) -> None:
    value: Any = asked
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is not None and value not in allowed:
        values = " or ".join(str(one).lower() for one in allowed) or "left out"
        raise ApiError(400, f"'{name}' may only be {values}: the engine does not read it", "unsupported_field", name)


def _plain_tool(tool: Any) -> Any:
    """Anthropic's clients write `"type": "custom"` on each tool that is the client's own; vLLM has no other kind."""
    if isinstance(tool, dict) and tool.get("type") == "custom":
        return {name: value for name, value in tool.items() if name != "type"}
    return tool


def n_per_prompt(body: Mapping[str, Any]) -> int:
    """/v1/completions: `n` for each prompt; a list of integers is one prompt."""
    num = _n(body) * _num_texts(body, "prompt")
    if num > MAX_PROMPTS:
        message = f"'n' answers to each prompt are {num}, more than {MAX_PROMPTS}; send several requests"
        raise ApiError(400, message, "invalid_value", "n")
    return num


def n_of_chat(body: Mapping[str, Any]) -> int:
    """/v1/chat/completions."""
    return _n(body)


def one_per_conversation(body: Mapping[str, Any]) -> int:
    """/v1/chat/completions/batch."""
    return max(1, _bounded(len(_list(body.get("messages"))), "messages"))


def one_per_input(body: Mapping[str, Any]) -> int:
    """/v1/embeddings: each text is a sequence."""
    return _num_texts(body, "input")


def n_of_sampling_params(body: Mapping[str, Any]) -> int:
    """/inference/v1/generate."""
    params = body.get("sampling_params")
    return _n(params) if isinstance(params, dict) else 1


def one_per_item(body: Mapping[str, Any]) -> int:
    """/generative_scoring."""
    return _num_texts(body, "items")


def one_per_question(body: Mapping[str, Any]) -> int:
    """/v1/systemone."""
    questions = body.get("questions")
    return max(1, _bounded(len(questions), "questions")) if isinstance(questions, dict) else 1


def one(body: Mapping[str, Any]) -> int:
    """/v1/responses, /v1/messages: one answer."""
    return 1


def _n(body: Mapping[str, Any]) -> int:
    """Raises ApiError 400 if it is no count: vLLM would read "3" as 3, and the queue would count one.

    vLLM's own bound is 16,384: making so many copies of one request holds up all streams for a minute.
    """
    n = body.get("n")
    if n is None:
        return 1
    if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_N:
        raise ApiError(400, f"'n' must be an integer from 1 to {MAX_N}", "invalid_value", "n")
    return n


def _num_texts(body: Mapping[str, Any], name: str) -> int:
    """How many texts a string, token ids, or a list of either is. Raises ApiError 400 for too many."""
    value = body.get(name)
    is_list_of_texts = isinstance(value, list) and value and not isinstance(value[0], int)
    return _bounded(len(value), name) if isinstance(value, list) and is_list_of_texts else 1


def _bounded(count: int, name: str) -> int:
    if count > MAX_PROMPTS:
        message = f"'{name}' has {count}; one request may have {MAX_PROMPTS}. Send the others in separate requests"
        raise ApiError(400, message, "invalid_value", name)
    return count


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
