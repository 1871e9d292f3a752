"""Who may ask: an API key on every route but /health, and the Host header where that is pinned."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.gateway.http.bounded_http import CONNECTION, BoundedHttp
from qserve.gateway.key_brake import KeyBrake, network_of
from qserve.wire.errors import ApiError

__all__ = [
    "OPEN_PATHS",
    "AdminKeys",
    "GuardedKeys",
    "KeyAuth",
    "Keys",
    "bearer_token",
    "check_host",
    "client_of",
    "header",
    "owner_of",
    "peer_of",
    "trust",
]

OPEN_PATHS = frozenset({"/health"})
_CLIENT = "qserve.client"
_OWNER = "qserve.owner"
# RFC 9110: a name or address, and a port of digits. `localhost:80@evil` is neither.
_HOST = re.compile(rb"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")


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


class GuardedKeys:
    """Keys, and a brake on guessing them: the same for the API and for the UI's sign-in."""

    def __init__(self, keys: Sequence[str], brake: KeyBrake | None = None) -> None:
        """`brake`: counts wrong keys together with whoever else asks for them."""
        self._keys = Keys(keys)
        self._brake = brake or KeyBrake()

    def __bool__(self) -> bool:
        return bool(self._keys)

    async def admit(self, scope: Scope, token: bytes) -> bool:
        """Whether `token` is right; told only after a pause where the request's address showed many wrong ones."""
        connection: BoundedHttp | None = scope.get(CONNECTION)
        address = peer_of(scope)
        is_trusted = connection is not None and connection.is_trusted
        pause_s = self._brake.pause_s(address, is_trusted=is_trusted)
        is_right = self._keys.holds(token)
        if is_right:
            trust(scope)  # before the pause: it must not be closed in favour of strangers meanwhile
        else:
            self._brake.count_wrong(address)
            if connection is not None:
                connection.distrust()
        if pause_s:
            await asyncio.sleep(pause_s)
        return is_right


class KeyAuth:
    """ASGI middleware: the Host where that is pinned, then the key."""

    def __init__(self, app: ASGIApp, keys: GuardedKeys, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_host(scope, self._hosts)
            if scope["path"] not in OPEN_PATHS:
                if self._keys:
                    await self._check(scope)
                trust(scope)
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        token = _token(scope)
        if not await self._keys.admit(scope, token):
            raise ApiError(401, "the API key is not one of this gateway's keys", "invalid_api_key")
        digest = hashlib.sha256(token).hexdigest()
        scope[_CLIENT], scope[_OWNER] = f"{client_of(scope)} {digest[:16]}", digest[:32]


class AdminKeys:
    """Who may administer: what restarts or changes the service for everybody."""

    def __init__(self, keys: Sequence[str], brake: KeyBrake) -> None:
        self._keys = GuardedKeys(keys, brake)

    async def check(self, scope: Scope, instead: str) -> None:
        """403 without such a key; `instead`: what does the same on the machine itself."""
        if not self._keys:
            message = f"this service has no admin key; start it with --admin-key-file FILE, or {instead}"
            raise ApiError(403, message, "not_admin")
        if not await self._keys.admit(scope, _token(scope)):
            raise ApiError(403, f"this needs a key of --admin-key-file; or {instead}", "not_admin")


def client_of(scope: Scope) -> str:
    """Who asks, as far as it can be told: the key, where one was accepted, and the address; IPv6 by its /64."""
    client: str = scope.get(_CLIENT) or network_of(peer_of(scope))
    return client


def owner_of(scope: Scope) -> str:
    """Whose files a request may see: a digest of its key, "" where the gateway asks for none."""
    owner: str = scope.get(_OWNER, "")
    return owner


def trust(scope: Scope) -> None:
    """The request was let in: its connection is kept longer than those of strangers."""
    connection: BoundedHttp | None = scope.get(CONNECTION)
    if connection is not None:
        connection.trust()


def peer_of(scope: Scope) -> str:
    """The address that the connection comes from; "" where it has none."""
    return scope["client"][0] if scope.get("client") else ""


def _token(scope: Scope) -> bytes:
    """The key that was sent. Anthropic's clients have a header of their own for it, x-api-key."""
    authorization = header(scope, b"authorization")
    token = bearer_token(authorization)
    if authorization and not token:
        # Not looked at, it would be a credential that passes without being right.
        message = "the Authorization header holds no key; send Authorization: Bearer <key>, or x-api-key alone"
        raise ApiError(401, message, "invalid_api_key")
    token = token or header(scope, b"x-api-key")
    if not token:
        raise ApiError(401, "no API key given; send the header Authorization: Bearer <key>", "missing_api_key")
    return token


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
    """`[::1]:8000` → `[::1]`, `localhost:8000` → `localhost`; b"" for what is no host."""
    match = _HOST.fullmatch(host)
    return match[1].lower() if match is not None else b""
