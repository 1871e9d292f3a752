"""Cached prompts of one key are found by that key alone: how fast an answer begins tells whether its prompt was there.

Engines keep prompts apart by a salt. It is made of the key and of the client's own `cache_salt`, with a secret of this
service, so that no client can name another's.
"""

from __future__ import annotations

import hmac
import json
from functools import lru_cache
from typing import Any

from pydantic_core import from_json, to_json

from qserve.gateway.large_bodies import LARGE_BYTES

__all__ = ["CacheSalts", "with_cache_salt"]

_NAME = b'"cache_salt"'


class CacheSalts:
    """Makes the salt of a request. All processes of a gateway have one `secret`."""

    def __init__(self, secret: str, *, shared: bool) -> None:
        """`shared`: clients find each other's prompts, but for those that carry a `cache_salt`."""
        self._secret = secret.encode()
        self._shared = shared

    def of(self, owner: str, given: Any) -> str | None:
        """For a request of this owner (`auth.owner_of`), whose body's `cache_salt` is `given`; None: what it says.

        `given` may be any JSON: whether it is a text is the engine's to say.
        """
        if self._shared or not owner:  # without keys all clients are one
            return None
        return _own_salt(self._secret, owner) if given is None else _salt(self._secret, owner, given)


def _salt(secret: bytes, owner: str, given: Any) -> str:
    return hmac.digest(secret, json.dumps([owner, given]).encode(), "sha256").hex()


@lru_cache(maxsize=1024)  # few clients; what they say themselves is not kept, and may be megabytes
def _own_salt(secret: bytes, owner: str) -> str:
    return _salt(secret, owner, None)


def with_cache_salt(body: bytes, salt: str) -> bytes:
    """A JSON object, with this `cache_salt` in the place of its own.

    Without one, or where it is large, it is not parsed again: of two members of one name vLLM reads the last.
    """
    if len(body) <= LARGE_BYTES and _NAME in body:  # not in a string: its quotes would be escaped
        return to_json({**from_json(body), "cache_salt": salt})
    rest = body.rstrip()[:-1].rstrip()
    return b'%b%b%b:"%b"}' % (rest, b"" if rest.endswith(b"{") else b",", _NAME, salt.encode())
