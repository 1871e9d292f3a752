"""`<function=f>`, `<parameter=key>`: the call of Qwen3-Coder, Qwen3-Next-Coder, Qwen3.5 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from qserve.engine.transformers.parsing.parts import Arguments, CallBegins, Part

__all__ = ["Qwen3CoderCall"]

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)</parameter>", re.DOTALL)


class Qwen3CoderCall:
    """Each parameter becomes a part of the arguments' JSON when it is complete. Strings are written as they are."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        """`parameters`: by function, the JSON schema of its arguments."""
        self._parameters = parameters
        self._properties: Mapping[str, Any] | None = None
        self._text = ""
        self._num_given = 0

    def push(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        if self._properties is None:
            function = _FUNCTION.match(self._text)
            if function is None:
                return []
            self._properties = self._parameters.get(function[1], {}).get("properties") or {}
            self._text = self._text[function.end() :]
            parts += [CallBegins(function[1])]
        if "</parameter>" in self._text:
            for found in _PARAMETER.finditer(self._text):
                parts.append(Arguments(self._entry(found[1], found[2])))
                end = found.end()
                rest = self._text[end:]
            self._text = rest
        return parts

    def ends_within_text(self, end: str) -> bool:
        return self._text.rfind("<parameter=") > self._text.rfind("</parameter>")

    def _entry(self, key: str, written: str) -> str:
        opening = "{" if self._num_given == 0 else ", "
        self._num_given += 1
        text = written.removeprefix("\n").removesuffix("\n")
        schema = (self._properties or {}).get(key)
        return f"{opening}{json.dumps(key, ensure_ascii=False)}: {_as_json(text, schema)}"

    def close(self) -> list[Part]:
        if self._properties is None:
            return []
        return [Arguments("}" if self._num_given else "{}")]


def _as_json(text: str, schema: Any) -> str:
    """A string where the schema says string, or where it is not valid JSON."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    choices = schema.get("enum") if isinstance(schema, dict) else None
    is_string = kinds == "string" or (choices is not None and text in choices)
    if not is_string:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if not (isinstance(value, (int, float)) and isinstance(kinds, list) and "string" in kinds):
            return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)
