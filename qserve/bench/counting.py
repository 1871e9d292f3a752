"""Counts tokens by the server's own tokenizer if available, else by an estimate that is reported as one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qserve.bench.connection import Address
from qserve.client.answer import NotJson, Unreachable
from qserve.client.http import Connection
from qserve.errors import MissingExtra, UsageError

__all__ = ["Counter", "counter_of", "local_counter", "named_counter"]

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Counter:
    """Tokens of a text, without what templates and BOS add.

    Attributes:
        count: tokens.
        source: for people.
        is_exact: false for a guess.
        is_remote: counting is a question to the server, a millisecond or more.
        close: for when no more is to be counted.
    """

    count: Callable[[str], int]
    source: str
    is_exact: bool = True
    is_remote: bool = False
    close: Callable[[], None] = lambda: None


def counter_of(address: Address, api_key: str, model: str, tokenizer: Path | None) -> Counter:
    """A tokenizer's folder if one is named, the server's files, its /tokenize, or a guess, in this order.

    Raises UsageError for a folder that holds no tokenizer.
    """
    if tokenizer is not None:
        return named_counter(tokenizer)
    server = _Server(address, api_key)
    status, given = server.ask("GET", f"/v1/qserve/tokenizer/{quote(model)}")
    if status == 200 and "tokenizer.json" in given.get("files", {}) and importlib.util.find_spec("tokenizers"):
        server.close()
        return Counter(_of_text(given["files"]["tokenizer.json"]), "the server's tokenizer")
    status, given = server.ask("POST", "/tokenize", {"model": model, "prompt": "a", "add_special_tokens": False})
    if status == 200 and "tokens" in given:
        return Counter(
            lambda text: server.tokens(model, text), "the server's /tokenize", is_remote=True, close=server.close
        )
    server.close()
    return Counter(_guess, "an estimate: one token per common English word", is_exact=False)


def named_counter(folder: Path) -> Counter:
    """Of --tokenizer. Raises UsageError for a folder that holds none, MissingExtra without the package."""
    if importlib.util.find_spec("tokenizers") is None:
        raise MissingExtra("tokenizers", "--tokenizer")
    return local_counter(folder)


def local_counter(folder: Path) -> Counter:
    """From `tokenizer.json` in a folder, or that file itself."""
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    if not file.is_file():
        raise UsageError(f"--tokenizer {folder}: there is no tokenizer.json; name a checkpoint's folder")
    try:
        return Counter(_of_text(file.read_text()), f"the tokenizer in {folder}")
    except Exception as error:  # the library raises a bare Exception
        raise UsageError(f"--tokenizer {folder}: {error}") from error


def _of_text(text: str) -> Callable[[str], int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    return lambda prompt: len(tokenizer.encode(prompt, add_special_tokens=False).ids)


def _guess(text: str) -> int:
    return len(text.split())


class _Server:
    """Questions over one connection, before the load begins."""

    def __init__(self, address: Address, api_key: str) -> None:
        self._url = address.url
        self._connection = Connection(address.url, api_key, timeout_s=_TIMEOUT_S)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """(status, JSON object); (0, {}) where nobody answers."""
        for _ in range(2):  # the server may have closed what lay idle
            try:
                reply = self._connection.ask(method, path, body)
                answer = reply.json()
            except (Unreachable, NotJson):
                self._connection.close()
                continue
            return reply.status, answer if isinstance(answer, dict) else {}
        return 0, {}

    def close(self) -> None:
        self._connection.close()

    def tokens(self, model: str, text: str) -> int:
        status, given = self.ask("POST", "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
        if status != 200:
            what = f"answered {status}" if status else "stopped answering"
            raise UsageError(f"{self._url}/tokenize answered once and then {what}")
        return len(given["tokens"])
