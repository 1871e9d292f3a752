"""Every string in both languages, with the same fields, and none that nobody shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qserve.ui.strings import LANGUAGES, STRINGS, marked, say

FIELDS = re.compile(r"\{(\w+)\}")
SOURCE = "".join(
    file.read_text()
    for file in Path("qserve/ui").rglob("*")
    if file.suffix in (".py", ".js") and file.stem != "strings"
)


@pytest.mark.parametrize("key", STRINGS)
def test_both_languages_say_the_same_fields(key: str) -> None:
    english, chinese = STRINGS[key]
    assert english and chinese
    assert sorted(FIELDS.findall(english)) == sorted(FIELDS.findall(chinese))


@pytest.mark.parametrize("key", STRINGS)
def test_every_string_is_shown_somewhere(key: str) -> None:
    group, _, name = key.partition(".")
    made = any(f"{group}.{{" in SOURCE and f'"{part}"' in SOURCE for part in (name, name.rpartition(".")[2]))
    numbered = re.sub(r"\.\d$", ".{number}", key) in SOURCE
    assert f'"{key}"' in SOURCE or f"'{key}'" in SOURCE or made or numbered


def test_an_unknown_language_is_english() -> None:
    assert say("fr", "memory.of", used="1", total="2") == say("en", "memory.of", used="1", total="2") == "1 of 2"
    assert list(LANGUAGES) == ["en", "zh-CN"]


def test_an_unknown_key_is_a_programmers_mistake() -> None:
    with pytest.raises(KeyError):
        marked("chat.nonsense")
