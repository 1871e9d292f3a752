"""Who may ask: an API key on every route but /health, and the Host header where that is pinned."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.wire.errors import ApiError

__all__ = ["OPEN_PATHS", "KeyAuth", "Keys", "bearer_token", "check_host", "header"]

OPEN_PATHS = frozenset({"/health"})


class Keys:
    """API keys, kept and compared as SHA-256 digests: of one length, in constant time, all of them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def holds(self, token: bytes) -> bool:
        """Whether `token` is one of them."""
        digest = hashlib.sha256(token).digest()
        # No early exit: how long it takes tells nothing about which key was near.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class KeyAuth:
    """ASGI middleware: the Host where that is pinned, then the key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._keys = Keys(keys)
        self._hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_host(scope, self._hosts)
            if self._keys and scope["path"] not in OPEN_PATHS:
                self._check_key(scope)
        await self._app(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        # Anthropic's clients have a header of their own for it.
        token = bearer_token(header(scope, b"authorization")) or header(scope, b"x-api-key")
        if not token:
            raise ApiError(401, "no API key given; send the header Authorization: Bearer <key>", "missing_api_key")
        if not self._keys.holds(token):
            raise ApiError(401, "the API key is not one of this gateway's keys", "invalid_api_key")


def check_host(scope: Scope, hosts: Sequence[str]) -> None:
    """421 unless the request came under one of the names `hosts`; with none, any name will do."""
    if hosts and _host_name(header(scope, b"host")) not in {host.lower().encode() for host in hosts}:
        names = ", ".join(sorted(hosts))
        message = f"this gateway answers to the hosts {names}; ask it under one of these names, or give it a key"
        raise ApiError(421, message, "host_not_allowed")


def bearer_token(authorization: bytes) -> bytes:
    """The token of an Authorization header, b"" if it holds none."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def header(scope: Scope, name: bytes) -> bytes:
    """The header's only value; b"" if it is absent or given twice, which no honest client does."""
    values = [value for key, value in scope["headers"] if key == name]
    return values[0] if len(values) == 1 else b""


def _host_name(host: bytes) -> bytes:
    """`[::1]:8000` → `[::1]`, `localhost:8000` → `localhost`."""
    if host.startswith(b"["):
        return host[: host.find(b"]") + 1].lower()
    return host.partition(b":")[0].lower()
