"""What is wrong with a request's body, in our words: what was seen, and what is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from qserve.units import counted
from qserve.wire.describe_json import describe_json
from qserve.wire.errors import MAX_NAME, ApiError, unknown_field

__all__ = ["NEEDED", "from_validation"]

# Of alternatives each complains; the one that knows what is wrong says all there is to say.
_KNOWS_WHAT_IS_WRONG = frozenset({"part"})
_MOST_PROBLEMS = 4
_BEGINS_WITH_A_NAME = re.compile(r"'([\w.]+)'")
_MISSING = frozenset({"missing", "union_tag_not_found"})

Context = Mapping[str, Any]
Path = tuple[str | int, ...]


def _container(context: Context) -> str:
    return "an object" if context["field_type"] == "Dictionary" else "a list"


_IN_JSON = {"False": "false", "True": "true"}
# What is needed, by the kind of pydantic's error: its own sentences tell clients of JSON about Python's types.
NEEDED: Mapping[str, Callable[[Context], str]] = {
    "bool_type": lambda _: "true or false",
    "dict_type": lambda _: "an object",
    "float_type": lambda _: "a number",
    "greater_than": lambda context: f"a number above {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"a number of at least {_number(context['ge'])}",
    "int_type": lambda _: "a whole number",
    "less_than_equal": lambda context: f"a number of at most {_number(context['le'])}",
    "list_type": lambda _: "a list",
    "literal_error": lambda context: _IN_JSON.get(str(context["expected"]), str(context["expected"])),
    "model_attributes_type": lambda _: "an object",
    "model_type": lambda _: "an object",
    "string_pattern_mismatch": lambda context: f"a string that matches {context['pattern']}",
    "string_too_long": lambda context: f"a string of at most {counted(context['max_length'], 'character')}",
    "string_too_short": lambda context: f"a string of at least {counted(context['min_length'], 'character')}",
    "string_type": lambda _: "a string",
    "too_long": lambda context: f"{_container(context)} of at most {counted(context['max_length'], 'item')}",
    "too_short": lambda context: f"{_container(context)} of at least {counted(context['min_length'], 'item')}",
    "union_tag_invalid": lambda context: f"one of {context['expected_tags']}",
}


def from_validation(error: ValidationError, body: Any, hint: Callable[[Path], str] = lambda _: "") -> ApiError:
    """A 400 that names the first wrong field, and up to four in its message.

    `body` is what was validated; `hint` says what was probably meant by an unknown field. Alternatives for one field
    share a sentence, and one that went into the field is the one that was meant: who complains of the whole of it is
    left out.
    """
    items = error.errors(include_url=False, include_input=False)
    items = [item for item in items if item["type"] in _KNOWS_WHAT_IS_WRONG] or items
    if items[0]["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {items[0]['ctx']['error']}", "invalid_json")
    complaints: dict[Path, list[Any]] = {}
    for item in items:
        complaints.setdefault(_path(item, body), []).append(item)
    entered = {path[:length] for path in complaints for length in range(len(path))}
    problems: list[ApiError] = []
    for path, context in complaints.items():
        ours = next((item for item in context if item["type"] not in NEEDED), None)
        if len(problems) < _MOST_PROBLEMS and (ours is not None or path not in entered):
            problems.append(_what_is_needed(path, context, body) if ours is None else _ours(path, ours, hint))
    kinds = {item["type"] for item in items}
    code = "unsupported_field" if kinds & {"extra_forbidden", "unsupported_field"} else "invalid_value"
    return ApiError(400, "; ".join(str(one) for one in problems), code, problems[0].param)


def _ours(path: Path, item: Any, hint: Callable[[Path], str]) -> ApiError:
    """What our own checks say, and the two that no value is needed for."""
    name, message = _name(path), item["msg"]
    if item["type"] == "extra_forbidden":
        return unknown_field(name, hint=hint(path))
    if item["type"] == "unsupported_field":
        name = str(item["ctx"]["field"])
    elif item["type"] in _MISSING:
        message = f"'{name}' is missing"
    elif name and f"'{name}'" not in message:
        message = f"'{name}': {message}"
    elif not name and (named := _BEGINS_WITH_A_NAME.match(message)) is not None:
        name = named[1]
    return ApiError(400, message, "invalid_value", name or None)


def _what_is_needed(path: Path, context: list[Any], body: Any) -> ApiError:
    *first, last = dict.fromkeys(NEEDED[item["type"]](item.get("ctx", {})) for item in context)
    needed = f"{', '.join(first)} or {last}" if first else last
    name = _name(path)
    field = f"'{name}'" if name else "the body"
    return ApiError(
        400, f"{field} is {describe_json(_at(body, path))}; {needed} is needed", "invalid_value", name or None
    )


def _name(path: Path) -> str:
    return ".".join(str(part)[:MAX_NAME] for part in path)[: 4 * MAX_NAME]


def _path(item: Any, body: Any) -> Path:
    """Names and numbers as the body has them; pydantic puts the alternatives that it tried between them."""
    path = _found(body, item["loc"], item["type"] in ("missing", "extra_forbidden")) or ()
    if item["type"].startswith("union_tag_"):
        return (*path, item["ctx"]["discriminator"].strip("'"))
    return path


def _found(value: Any, parts: Path, ends_in_a_name: bool) -> Path | None:
    """Those of `parts` that lead through `value`; the last one may be a name that is missing there."""
    if not parts:
        return ()
    part, rest = parts[0], parts[1:]
    if _holds(value, part):
        inner = _found(value[part], rest, ends_in_a_name)
        if inner is not None:
            return (part, *inner)
    if ends_in_a_name and not rest:
        return (part,) if isinstance(value, dict) else None
    return _found(value, rest, ends_in_a_name)


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _at(body: Any, path: Path) -> Any:
    for part in path:
        body = body[part]
    return body


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"
