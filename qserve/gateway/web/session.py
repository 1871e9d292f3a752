"""Browser sessions: opaque tokens in cookies, digests of them in memory. They end with the process."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.types import Scope

from qserve.gateway.auth import header

__all__ = ["SESSION_S", "Sessions", "cookie_name", "cookies", "is_https", "session_cookie"]

SESSION_S = 24 * 3600
"""Lifetime of a session."""
_MAX_SESSIONS = 4096


class Sessions:
    """Issued tokens by their SHA-256: reading them from memory or logs is not enough to sign in."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends_s: OrderedDict[str, float] = OrderedDict()

    def begin(self) -> str:
        """A new token. Beyond some thousands the oldest session ends."""
        token = secrets.token_urlsafe(32)
        self._ends_s[_digest(token)] = self._clock() + SESSION_S
        while len(self._ends_s) > _MAX_SESSIONS:
            self._ends_s.popitem(last=False)
        return token

    def visitor(self, token: str) -> str | None:
        """An identifier of the visitor with `token`, which grants nothing; None: no session."""
        digest = _digest(token)
        ends_s = self._ends_s.get(digest)
        if ends_s is None:
            return None
        if self._clock() >= ends_s:
            del self._ends_s[digest]
            return None
        return digest[:32]

    def end(self, token: str) -> None:
        """Signs out. An unknown token is not an error."""
        self._ends_s.pop(_digest(token), None)


def cookie_name(scope: Scope) -> str:
    """The cookie's name, with the port: browsers share cookies between the ports of a host."""
    server = scope.get("server")
    return f"qserve-{server[1] if server else 0}"


def cookies(scope: Scope, name: str) -> str:
    """The value of the cookie `name`; "" if there is none."""
    for pair in header(scope, b"cookie").decode("latin-1").split(";"):
        key, _, value = pair.strip().partition("=")
        if key == name:
            return value
    return ""


def session_cookie(scope: Scope, token: str) -> tuple[bytes, bytes]:
    """The Set-Cookie header of a token; an empty token deletes the cookie."""
    age_s = SESSION_S if token else 0
    value = f"{cookie_name(scope)}={token}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Strict"
    return b"set-cookie", (value + "; Secure" if is_https(scope) else value).encode()


def is_https(scope: Scope) -> bool:
    """Whether the browser uses TLS to a proxy in front (it says so itself, which affects only its own cookie)."""
    forwarded = header(scope, b"x-forwarded-proto").partition(b",")[0].strip().lower()
    return scope.get("scheme") == "https" or forwarded == b"https" or header(scope, b"origin").startswith(b"https://")


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()
