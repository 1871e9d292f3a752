"""Who may ask: an API key on every route but /health, and the Host header where that is pinned."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.wire.errors import ApiError

__all__ = ["OPEN_PATHS", "KeyAuth", "bearer_token"]

OPEN_PATHS = frozenset({"/health"})


class KeyAuth:
    """ASGI middleware. Keys are kept and compared as SHA-256 digests: of one length, in constant time, all of them."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._hosts = frozenset(host.lower().encode() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if self._hosts:
                self._check_host(scope)
            if self._digests and scope["path"] not in OPEN_PATHS:
                self._check_key(scope)
        await self._app(scope, receive, send)

    def _check_host(self, scope: Scope) -> None:
        host = _host_name(_header(scope, b"host"))
        if host not in self._hosts:
            names = ", ".join(sorted(name.decode() for name in self._hosts))
            message = f"this gateway answers to the hosts {names}; ask it under one of these names, or give it a key"
            raise ApiError(421, message, "host_not_allowed")

    def _check_key(self, scope: Scope) -> None:
        # Anthropic's clients have a header of their own for it.
        token = bearer_token(_header(scope, b"authorization")) or _header(scope, b"x-api-key")
        if not token:
            raise ApiError(401, "no API key given; send the header Authorization: Bearer <key>", "missing_api_key")
        digest = hashlib.sha256(token).digest()
        # No early exit: how long it takes tells nothing about which key was near.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise ApiError(401, "the API key is not one of this gateway's keys", "invalid_api_key")


def bearer_token(authorization: bytes) -> bytes:
    """The token of an Authorization header, b"" if it holds none."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def _header(scope: Scope, name: bytes) -> bytes:
    """The header's only value; b"" if it is absent or given twice, which no honest client does."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0] if len(values) == 1 else b""


def _host_name(host: bytes) -> bytes:
    """`[::1]:8000` → `[::1]`, `localhost:8000` → `localhost`."""
    if host.startswith(b"["):
        return host[: host.find(b"]") + 1].lower()
    return host.partition(b":")[0].lower()
