"""Adds a key to a file of keys, and removes one; whatever else the file says stays as it is, with its comments."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
import re
import secrets
import tempfile
from pathlib import Path

from qserve.errors import UsageError
from qserve.gateway.keys.entries import KeyEntry, entries_of, read_keys

__all__ = ["add_key", "new_key", "remove_key"]

_PREFIX = "sk-qs-"
_RANDOM_BYTES = 32
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*")
_HEADER = "# Keys of qserve up --keys: who may ask what. The keys themselves are not in here.\nkeys:\n"


def new_key() -> tuple[str, str]:
    """A key that nobody guesses, and its SHA-256 in hexadecimal."""
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return key, hashlib.sha256(key.encode()).hexdigest()


def add_key(file: Path, entry: KeyEntry) -> None:
    """At the end of the file, which is made where there is none. Raises UsageError where that gives no valid file."""
    text = ""
    if file.exists():
        if any(one.name == entry.name for one in read_keys(file)):
            raise UsageError(f"--keys {file} has a key {entry.name!r}; `qserve keys rm {entry.name}` removes it first")
        text = file.read_text()
    begun = text.rstrip("\n") + "\n" if text.strip() else _HEADER
    changed = begun + _text_of(entry, _indent_of(begun))
    try:
        entries_of(changed, str(file))
    except UsageError as error:
        message = (
            f"{error}; the key can't be added at its end, so write it there yourself: {_text_of(entry, '').strip()}"
        )
        raise UsageError(message) from None
    _replace(file, changed)


def remove_key(file: Path, name: str) -> None:
    """Takes out its lines. Raises UsageError where the file has no such key."""
    import yaml

    names = [one.name for one in read_keys(file)]
    if name not in names:
        known = f"; it has {', '.join(names)}" if names else ""
        raise UsageError(f"--keys {file} has no key {name[:64]!r}{known}")
    text = file.read_text()
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert root is not None, "it has keys"
    (listed,) = (value for field, value in root.value if field.value == "keys")
    item = listed.value[names.index(name)]
    if listed.flow_style:
        raise UsageError(f"--keys {file} lists its keys between brackets; take {name!r} out yourself")
    lines = text.splitlines(keepends=True)
    end = item.end_mark.line
    while end > item.start_mark.line + 1 and _is_apart(lines[end - 1]):
        end -= 1
    begun, rest = lines[: item.start_mark.line], lines[end:]
    changed = "".join(begun + rest)
    left = [one.name for one in entries_of(changed, str(file))]
    if left != [one for one in names if one != name]:
        raise UsageError(f"--keys {file} is written so that {name!r} can't be taken out alone; do it yourself")
    _replace(file, changed)


def _is_apart(line: str) -> bool:
    """Whether a line behind an entry belongs to what follows it."""
    return not line.strip() or line.lstrip().startswith("#")


def _text_of(entry: KeyEntry, indent: str) -> str:
    fields = {
        "name": entry.name,
        "sha256": entry.sha256,
        "models": None if entry.models is None else f"[{', '.join(map(_quoted, entry.models))}]",
        "requests_per_minute": entry.requests_per_minute,
        "tokens_per_minute": entry.tokens_per_minute,
        "tokens_per_day": entry.tokens_per_day,
        "priority": None if entry.priority == "normal" else entry.priority,
        "expires": entry.expires,
    }
    lines: list[str] = []
    for name, value in fields.items():
        if value is not None:
            said = value.isoformat() if isinstance(value, dt.date) else _quoted(value) if name == "name" else value
            lines.append(f"{indent}{'  ' if lines else '- '}{name}: {said}\n")
    return "".join(lines)


def _quoted(text: object) -> str:
    """As YAML reads it again: not `1.5`, which is a number."""
    import yaml

    said = str(text)
    if _PLAIN.fullmatch(said) and yaml.safe_load(said) == said:
        return said
    return "'" + said.replace("'", "''") + "'"


def _indent_of(text: str) -> str:
    """How the list's entries are indented already."""
    for line in text.splitlines():
        if line.lstrip().startswith("- "):
            return line[: len(line) - len(line.lstrip())]
    return "  "


def _replace(file: Path, text: str) -> None:
    """In one step: a service that follows the file never sees half of it. Only its owner may read a new one."""
    mode = file.stat().st_mode & 0o777 if file.exists() else 0o600
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, beside = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise UsageError(f"--keys {file} can't be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "w") as out:
            out.write(text)
        Path(beside).chmod(mode)
        Path(beside).replace(file)
    except OSError as error:
        Path(beside).unlink()
        raise UsageError(f"--keys {file} can't be written: {error.strerror}") from error
