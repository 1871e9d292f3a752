"""The file of keys: YAML, a list `keys`, of each key its name, the SHA-256 of its text, and what it may do.

    keys:
      - name: alice
        sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0bb8224cd1d...
        models: [qwen3-8b]            # without: all
        requests_per_minute: 60
        tokens_per_minute: 100000     # of prompts and answers
        tokens_per_day: 2000000       # from 00:00 UTC
        priority: normal              # high: before the others; background: behind them
        expires: 2027-06-30           # valid through that day (UTC)

The text of a key is nowhere: `qserve keys add` prints it once. Pure, but for `read_keys`.
"""

from __future__ import annotations

import datetime as dt
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.yaml_errors import yaml_problem

__all__ = ["PRIORITIES", "KeyEntry", "entries_of", "read_keys"]

PRIORITIES = ("high", "normal", "background")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "tokens_per_day")
_MOST = 10**15


@dataclass(frozen=True)
class KeyEntry:
    """One key.

    Attributes:
        name: in logs, metrics and the record; unique.
        sha256: of the key's text, in hexadecimal; unique.
        models: names of served models and adapters that it may ask; None: all.
        requests_per_minute: as many at once, then as they come back; None: unbounded, as are the others.
        tokens_per_minute, tokens_per_day: of prompts and answers. The day begins at 00:00 UTC.
        priority: one of `PRIORITIES`.
        expires: the last day on which it is valid (UTC); None: it does not expire.
    """

    name: str
    sha256: str
    models: tuple[str, ...] | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    priority: str = "normal"
    expires: dt.date | None = None

    @property
    def owner(self) -> str:
        """Of its files, batches and responses (`auth.owner_of`)."""
        return self.sha256[:32]

    @property
    def is_bounded(self) -> bool:
        """Whether it may not do all that a key without a name may."""
        limits = (self.models, *(getattr(self, name) for name in _LIMITS), self.expires)
        return self.priority != "normal" or any(one is not None for one in limits)

    def has_expired(self, now_unix_s: float) -> bool:
        """Whether its last day is over."""
        return self.expires is not None and dt.datetime.fromtimestamp(now_unix_s, dt.UTC).date() > self.expires


def read_keys(file: Path) -> tuple[KeyEntry, ...]:
    """The entries of a file. Raises UsageError where it can't be read or is not one of keys."""
    try:
        text = file.read_text()
    except OSError as error:
        instead = f"; `qserve keys add NAME --keys {file}` makes one" if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"--keys {file} can't be read: {error.strerror}{instead}") from error
    except UnicodeDecodeError:
        raise UsageError(
            f"--keys {file} is not text; `qserve keys add NAME --keys {file}` writes such a file"
        ) from None
    return entries_of(text, str(file))


def entries_of(text: str, file: str) -> tuple[KeyEntry, ...]:
    """The entries of a file's text. Raises UsageError, which never repeats a value that may be a key."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--keys {file} is not YAML: {yaml_problem(error)}") from None
    if document is None:
        return ()
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list | None) or [*document] != ["keys"]:
        raise UsageError(f"--keys {file} is a list 'keys:' and nothing else; `qserve keys add NAME` writes one")
    entries: list[KeyEntry] = []
    for index, given in enumerate(document["keys"] or ()):
        entry = _entry(given, f"--keys {file}, key {index + 1}", file)
        for other in entries:
            if other.name == entry.name or other.sha256 == entry.sha256:
                same = "name" if other.name == entry.name else "sha256"
                raise UsageError(f"--keys {file}: {other.name!r} and {entry.name!r} have the same {same}")
        entries.append(entry)
    return tuple(entries)


def _entry(given: Any, where: str, file: str) -> KeyEntry:
    known = [one.name for one in fields(KeyEntry)]
    if not isinstance(given, dict):
        raise UsageError(f"{where} is not a mapping; it has 'name:', 'sha256:' and what the key may do")
    name = given.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UsageError(f"{where}: 'name' takes up to 64 letters, digits, '.', '_' and '-'")
    where = f"--keys {file}, {name!r}"
    for field in given:
        if field not in known:
            near = difflib.get_close_matches(str(field), known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(known)}"
            raise UsageError(f"{where} has no field {str(field)[:40]!r}{hint}")
    sha256 = given.get("sha256")
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        raise UsageError(f"{where}: 'sha256' takes the 64 hexadecimal digits of a key's SHA-256, never the key itself")
    priority = given.get("priority", "normal")
    if priority not in PRIORITIES:
        raise UsageError(f"{where}: 'priority' is one of {', '.join(PRIORITIES)}")
    limits = {one: _limit(given, one, where) for one in _LIMITS}
    return KeyEntry(name, sha256, _models(given, where), **limits, priority=priority, expires=_date(given, where))


def _limit(given: Mapping[str, Any], name: str, where: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
        raise UsageError(f"{where}: {name!r} is {str(value)[:40]!r}; it takes a whole number from 1 on")
    return value


def _models(given: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    value = given.get("models")
    if value is None:
        return None
    names: Sequence[Any] = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if not names or not all(isinstance(one, str) and one for one in names):
        raise UsageError(f"{where}: 'models' takes names of served models, as GET /v1/models lists them; without: all")
    return tuple(names)


def _date(given: Mapping[str, Any], where: str) -> dt.date | None:
    value = given.get("expires")
    if value is None or (isinstance(value, dt.date) and not isinstance(value, dt.datetime)):
        return value
    raise UsageError(f"{where}: 'expires' is {str(value)[:40]!r}; it takes a date, such as 2027-06-30")
