"""The named keys of a running gateway: who a key is, what it may do now, and what its requests take.

The file is looked at every second. A change holds from the next request on; a file that is broken changes nothing and
is told in the log. Several gateway processes follow the file each by itself, and count in one place (`Ledger`).
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qserve.errors import UsageError
from qserve.gateway.keys.budgets import Budgets, Spent
from qserve.gateway.keys.entries import KeyEntry, read_keys
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError

__all__ = ["KeyBook", "Ledger", "LocalLedger", "NamedKeys", "check_model", "check_not_expired"]

_log = logging.getLogger("qserve.gateway")
_LOOK_S = 1.0
_BYTES_A_TOKEN = 4
# Of an answer whose request bounds it by nothing.
_ANSWER_TOKENS = 256


@dataclass(frozen=True)
class _Known:
    """The entries of one moment: the file is read in a thread, beside requests."""

    entries: tuple[KeyEntry, ...]
    by_sha256: Mapping[str, KeyEntry]
    by_owner: Mapping[str, KeyEntry]
    by_name: Mapping[str, KeyEntry]

    @classmethod
    def of(cls, entries: Sequence[KeyEntry]) -> _Known:
        return cls(
            tuple(entries),
            {one.sha256: one for one in entries},
            {one.owner: one for one in entries},
            {one.name: one for one in entries},
        )


class KeyBook:
    """The entries of the file as they are now."""

    def __init__(self, file: Path) -> None:
        """Raises UsageError for a file that is none of keys."""
        self._file = file
        self._seen = _stamp(file)
        self._known = _Known.of(read_keys(file))

    @property
    def entries(self) -> Sequence[KeyEntry]:
        return self._known.entries

    def names(self) -> list[str]:
        """Of all keys."""
        return [one.name for one in self.entries]

    def of_token(self, token: bytes) -> KeyEntry | None:
        """Whose key this is."""
        known = self._known
        return known.by_sha256.get(hashlib.sha256(token).hexdigest()) if known.entries else None

    def of_owner(self, owner: str) -> KeyEntry | None:
        """The key of a request's owner (`auth.owner_of`)."""
        return self._known.by_owner.get(owner)

    def named(self, name: str) -> KeyEntry | None:
        return self._known.by_name.get(name)

    async def follow(self) -> None:
        """Reads the file again whenever it has changed, for ever."""
        while True:
            await asyncio.sleep(_LOOK_S)
            await asyncio.to_thread(self.look)

    def look(self) -> None:
        """Reads the file again if it has changed since the last look."""
        stamp = _stamp(self._file)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            entries = read_keys(self._file)
        except UsageError as error:
            _log.error("%s; the keys stay as they were", error)
            return
        before, self._known = self._known.by_name, _Known.of(entries)
        now = self._known.by_name
        words = (
            ("new", now.keys() - before.keys()),
            ("changed", {name for name in now.keys() & before.keys() if now[name] != before[name]}),
            ("removed", before.keys() - now.keys()),
        )
        told = "; ".join(f"{word}: {', '.join(sorted(names))}" for word, names in words if names)
        _log.info("read %s again: %d keys%s", self._file, len(entries), f" ({told})" if told else "")


class Ledger(Protocol):
    """Where all gateway processes count what keys use."""

    async def begin(self, name: str, num_tokens: int) -> int:
        """As `Budgets.begin`, of the key of this name; raises ApiError 401 where it is gone."""

    def end(self, name: str, number: int, spent: Spent) -> None:
        """As `Budgets.end`."""

    async def document(self, name: str | None) -> list[dict[str, Any]]:
        """As `Budgets.document`, of one key or of all."""


class LocalLedger:
    """The `Ledger` in the process that counts."""

    def __init__(
        self, book: KeyBook, used_today: Mapping[str, tuple[int, int, int]], clock: Callable[[], float] = time.time
    ) -> None:
        self._book = book
        self._budgets = Budgets(clock, used_today)

    async def begin(self, name: str, num_tokens: int) -> int:
        entry = self._book.named(name)
        if entry is None:
            raise ApiError(401, f"the key {name!r} was removed", "invalid_api_key")
        return self._budgets.begin(entry, num_tokens)

    def end(self, name: str, number: int, spent: Spent) -> None:
        self._budgets.end(name, number, spent)

    async def document(self, name: str | None) -> list[dict[str, Any]]:
        return self._budgets.document(one for one in self._book.entries if name is None or one.name == name)


class NamedKeys:
    """What routes ask of named keys."""

    def __init__(self, book: KeyBook, ledger: Ledger, others: frozenset[str]) -> None:
        """`others`: owners of keys without names."""
        self.book = book
        self.ledger = ledger
        self._others = others

    def of_request(self, owner: str) -> KeyEntry | None:
        """The key of a request's owner (`auth.owner_of`); None of a key without a name.

        Raises ApiError 401 of one that is no longer valid: a batch may be older than the file.
        """
        entry = self.book.of_owner(owner)
        if entry is None and owner and owner not in self._others:
            raise ApiError(401, "the key of this request was removed", "invalid_api_key")
        if entry is not None:
            check_not_expired(entry)
        return entry

    @asynccontextmanager
    async def spending(
        self, entry: KeyEntry, record: RequestRecord, num_bytes: int, num_sequences: int, max_tokens: int | None
    ) -> AsyncIterator[None]:
        """Counts a request of this key. Raises ApiError 429 where nothing is left for it."""
        prompt = num_bytes // _BYTES_A_TOKEN if num_sequences else 0
        answer = num_sequences * (_ANSWER_TOKENS if max_tokens is None else max_tokens)
        record.key = entry.name
        record.is_background |= entry.priority == "background"
        number = await self.ledger.begin(entry.name, prompt + answer)
        try:
            yield
        finally:
            self.ledger.end(entry.name, number, _spent(record, prompt))


def check_not_expired(entry: KeyEntry) -> None:
    """Raises ApiError 401 after the last day of a key."""
    if entry.has_expired(time.time()):
        message = f"the key {entry.name!r} expired after {entry.expires}; ask whoever gave it to you for another"
        raise ApiError(401, message, "expired_api_key")


def check_model(entry: KeyEntry, names: Sequence[str]) -> None:
    """Raises ApiError 403 where the key may ask no model of these names, which are those of one."""
    if entry.models is None or any(name in entry.models for name in names):
        return
    message = f"the key {entry.name!r} may not ask {names[0]!r}; it may ask {', '.join(entry.models)}"
    raise ApiError(403, message, "model_not_allowed", "model")


def _spent(record: RequestRecord, prompt: int) -> Spent:
    """By the worker's usage; of a stream that ended before it came, by its events and the length of its prompt."""
    if record.num_prompt_tokens is None and not record.num_events:
        return Spent(0, record.num_generated_tokens or 0)
    told = record.num_prompt_tokens
    generated = record.num_generated_tokens
    return Spent(prompt if told is None else told, record.num_events if generated is None else generated)


def _stamp(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
