"""The chat templates that a checkpoint holds, as transformers finds them, and what is wrong with those that are used.

`chat_template.jinja`, with others by name in `additional_chat_templates/`, goes before `chat_template` of
tokenizer_config.json: one template, or several by name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateSyntaxError

from qserve.encodings import no_utf8, wrong_byte
from qserve.errors import BrokenCheckpoint
from qserve.hub.template_environment import template_environment

__all__ = [
    "DEFAULT",
    "TOOL_USE",
    "WrittenTemplate",
    "check_given_template",
    "check_template_file",
    "check_templates",
    "given_template",
    "templates_in",
    "without_default",
]

DEFAULT = "default"
TOOL_USE = "tool_use"
"""What transformers renders conversations with tools by, where it is there; DEFAULT: all others."""
_FILE, _MORE, _CONFIG = "chat_template.jinja", "additional_chat_templates", "tokenizer_config.json"
_USED = (DEFAULT, TOOL_USE)
_MARK = "\ufeff"


@dataclass(frozen=True)
class WrittenTemplate:
    """One template of a checkpoint; `place` is its file, `file` the same where it is nothing but the template."""

    name: str
    source: str
    place: str
    file: Path | None = None


def templates_in(folder: Path) -> tuple[WrittenTemplate, ...]:
    """Every template of the checkpoint or tokenizer in `folder`. Raises BrokenCheckpoint for one that is not UTF-8."""
    files = [(DEFAULT, folder / _FILE), *((file.stem, file) for file in sorted((folder / _MORE).glob("*.jinja")))]
    found = [WrittenTemplate(name, _read(file), str(file), file) for name, file in files if file.is_file()]
    return tuple(found) or tuple(_in_config(folder / _CONFIG))


def check_templates(folder: Path, instead: str) -> None:
    """Raises BrokenCheckpoint for a template that is used and can't be: no Jinja, or with a byte order mark.

    It would fail at each conversation, or put tokens before each. `instead`: how another is given.
    """
    for one in templates_in(folder):
        if one.name in _USED:
            _check(one, instead)


def check_template_file(file: Path) -> None:
    """The same of a file that a flag names."""
    _check(WrittenTemplate(DEFAULT, _read(file), str(file), file), "correct it")


def given_template(value: str) -> WrittenTemplate | None:
    """The template that vLLM's --chat-template names: a file, or the text itself; None for one of vLLM's own, by name.

    Source: vllm 0.32 renderers/chat_utils.py, _load_chat_template.
    """
    file = Path(value)
    try:
        is_file = file.is_file()
    except (OSError, ValueError):  # longer than a name may be
        is_file = False
    if is_file:
        return WrittenTemplate(DEFAULT, _read(file), str(file), file)
    is_text = any(mark in value for mark in "{}\n")
    return WrittenTemplate(DEFAULT, value, "--chat-template") if is_text else None


def check_given_template(value: str) -> None:
    """`check_templates` of what --chat-template names."""
    if (one := given_template(value)) is not None:
        _check(one, "correct it")


def without_default(folder: Path) -> str | None:
    """Of a checkpoint with several templates by name and none for every conversation: which there are, and what to do.
    None for any other.
    """
    found = templates_in(folder)
    if not found or any(one.name == DEFAULT for one in found):
        return None
    names = ", ".join(one.name for one in found)
    one = next((one.file for one in found if one.file is not None), None)
    source = f"copy the one that is meant, as {one}," if one is not None else "write the one that is meant"
    return f"its chat templates are {names}, and none is called {DEFAULT}; {source} to {folder / _FILE}"


def _check(one: WrittenTemplate, instead: str) -> None:
    if one.source.startswith(_MARK):
        raise BrokenCheckpoint(
            f"{one.place}: the chat template begins with a byte order mark, which would become tokens of every prompt; "
            f"take it out ({_remove_mark(one)}), or {instead}"
        )
    try:
        template_environment().from_string(one.source)
    except TemplateSyntaxError as error:
        of = "" if one.file is not None else " of the template"
        raise BrokenCheckpoint(
            f"{one.place}, line {error.lineno}{of}: the chat template is broken ({error.message}); correct it, or "
            f"{instead}"
        ) from None
    except (RecursionError, SyntaxError, ValueError) as error:
        raise BrokenCheckpoint(f"{one.place}: the chat template can't be compiled ({error}); {instead}") from None


def _remove_mark(one: WrittenTemplate) -> str:
    return f"sed -i '1s/^\\xEF\\xBB\\xBF//' {one.file}" if one.file is not None else "\\ufeff in its text"


def _read(file: Path) -> str:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise BrokenCheckpoint(f"the chat template {file} can't be read ({error.strerror})") from None
    if (place := wrong_byte(data)) is not None:
        raise BrokenCheckpoint(f"the chat template {file}, {no_utf8(data, place)}; save it as UTF-8")
    return data.decode()


def _in_config(file: Path) -> Iterator[WrittenTemplate]:
    try:
        written: Any = json.loads(file.read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):  # whoever loads the tokenizer says what is wrong with the file
        return
    if isinstance(written, str) and written:
        written = [{"name": DEFAULT, "template": written}]
    elif isinstance(written, dict):
        written = [{"name": name, "template": source} for name, source in written.items()]
    for entry in written if isinstance(written, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("template"), str):
            yield WrittenTemplate(str(entry.get("name")), entry["template"], str(file))
