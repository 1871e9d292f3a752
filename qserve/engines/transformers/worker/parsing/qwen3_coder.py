"""`<function=f>`, `<parameter=key>`: the call of Qwen3-Coder, Qwen3-Next-Coder, Qwen3.5 and later."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from qserve.engines.transformers.worker.parsing.parts import Arguments, CallBegins, Part
from qserve.grammar.references import followed
from qserve.grammar.written_values import NULL, text_value

__all__ = ["Qwen3CoderCall"]

_FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
_KEY = re.compile(r"\s*<parameter=([^>\n]+)>\n?")
# As the grammar has it; or whatever looks like it, where more of the call follows.
_END = re.compile(r"\n</parameter>\n|\n?</parameter>\s*(?=<parameter=|</function>)")
_TAG, _BEHIND = "</parameter>", ("<parameter=", "</function>")
_LAST_END = re.compile(r"\n?</parameter>\s*\Z")


class Qwen3CoderCall:
    """Each parameter becomes a part of the arguments' JSON when it is complete. Strings are written as they are."""

    def __init__(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        """`parameters`: by function, the JSON schema of its arguments."""
        self._parameters = parameters
        self._schema: Mapping[str, Any] | None = None  # of the arguments, once the function is known
        self._key: str | None = None  # of the parameter whose value is being written
        self._text = ""
        self._num_seen = 0  # characters of a value in which no end begins
        self._num_given = 0

    def push(self, text: str) -> list[Part]:
        self._text += text
        parts: list[Part] = []
        if self._schema is None:
            function = _FUNCTION.match(self._text)
            if function is None:
                return []
            self._schema = self._parameters.get(function[1], {})
            self._text = self._text[function.end() :]
            parts += [CallBegins(function[1])]
        while (entry := self._next_entry(_END)) is not None:
            parts.append(entry)
        return parts

    def _next_entry(self, end: re.Pattern[str]) -> Arguments | None:
        """The next parameter that is complete."""
        if self._key is None:
            key = _KEY.match(self._text)
            # A line break after the key may be still to come.
            if key is None or key.end() == len(self._text):
                return None
            self._key, self._text, self._num_seen = key[1], self._text[key.end() :], 0
        # The line break before the tag is the one after the key where the value is empty.
        text = "\n" + self._text
        found = end.search(text, self._num_seen)
        if found is None:
            self._num_seen = _num_without_end(text)
            return None
        written, self._text = self._text[: max(found.start() - 1, 0)], self._text[found.end() - 1 :]
        opening, key_json = "{" if self._num_given == 0 else ", ", json.dumps(self._key, ensure_ascii=False)
        value = _as_json(written, self._key, self._schema or {})
        self._key, self._num_given = None, self._num_given + 1
        return Arguments(f"{opening}{key_json}: {value}")

    def ends_within_text(self, end: str) -> bool:
        return self._key is not None and _LAST_END.search(self._text) is None

    def close(self) -> list[Part]:
        if self._schema is None:
            return []
        last = self._next_entry(_LAST_END)
        return [*([] if last is None else [last]), Arguments("}" if self._num_given else "{}")]


def _num_without_end(text: str) -> int:
    """Characters ahead of where an end that is still being written may begin: what need not be read again."""
    before, tag, behind = text.rpartition(_TAG)
    if tag and any(begin.startswith(behind.lstrip()) for begin in _BEHIND):
        return max(len(before) - 1, 0)
    return max(len(text) - len(_TAG) - 1, 0)


def _as_json(text: str, key: str, schema: Mapping[str, Any]) -> str:
    """A string where the schema says string, or where it is not valid JSON."""
    root = followed(schema, schema)
    properties = root.get("properties") if isinstance(root, Mapping) else None
    of_key = properties.get(key) if isinstance(properties, Mapping) else None
    string = text_value(of_key, schema)
    if string is not None:
        return NULL if string.or_null and text == NULL else json.dumps(text, ensure_ascii=False)
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
