"""Every string in both languages, with the same fields, and none that nobody shows."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

from qserve.planner.term import COLUMNS
from qserve.ui import strings

FIELDS = re.compile(r"\{(\w+)\}")
SOURCE = "".join(
    file.read_text()
    for file in Path("qserve/ui").rglob("*")
    if file.suffix in (".py", ".js") and file.parent.name != "strings"
)

EVERYTHING = "".join(file.read_text() for file in Path("qserve").rglob("*.py") if "strings" not in file.parts)


def fields_of(text: str) -> list[str]:
    return sorted(FIELDS.findall(text))


def is_shown(key: str) -> bool:
    group, _, name = key.partition(".")
    if group == "failure" and (name.isdigit() or f'"{name}"' in EVERYTHING):  # a status, or a code of the API
        return True
    if group == "term" and name in COLUMNS:  # the pages go over all of them
        return "term.{" in SOURCE
    made = any(f"{group}.{{" in SOURCE and f'"{part}"' in SOURCE for part in (name, name.rpartition(".")[2]))
    numbered = re.sub(r"\.\d$", ".{number}", key) in SOURCE
    return f'"{key}"' in SOURCE or f"'{key}'" in SOURCE or made or numbered


def test_both_languages_say_the_same_fields() -> None:
    assert len(strings.STRINGS) > 100
    differing = [
        key
        for key, (english, chinese) in strings.STRINGS.items()
        if not english or not chinese or fields_of(english) != fields_of(chinese)
    ]
    assert not differing


def test_no_page_has_a_key_of_another() -> None:
    names = [name for _, name, is_package in pkgutil.iter_modules(strings.__path__) if not is_package]
    assert {"shared", "failures", "chat", "plan"} < set(names)
    files = [import_module(f"{strings.__name__}.{name}").STRINGS for name in names]
    assert len(strings.STRINGS) == sum(map(len, files))


def test_every_string_is_shown_somewhere() -> None:
    assert not [key for key in strings.STRINGS if not is_shown(key)]


def test_an_unknown_language_is_english() -> None:
    assert (
        strings.translate("fr", "memory.of", used="1", total="2")
        == strings.translate("en", "memory.of", used="1", total="2")
        == "1 of 2"
    )
    assert list(strings.LANGUAGES) == ["en", "zh-CN"]


def test_an_unknown_key_is_a_programmers_mistake() -> None:
    with pytest.raises(KeyError):
        strings.marked("chat.nonsense")
