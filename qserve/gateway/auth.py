"""Authentication: an API key on every route but /health, and the Host header if it is pinned."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from qserve.gateway.http.bounded_http import CONNECTION, BoundedHttp
from qserve.gateway.key_throttle import KeyThrottle, network_of
from qserve.gateway.keys.book import KeyBook, check_not_expired
from qserve.wire.errors import ApiError

__all__ = [
    "OPEN_PATHS",
    "SIGNED_IN",
    "AdminKeys",
    "GuardedKeys",
    "KeyAuth",
    "Keys",
    "bearer_token",
    "check_host",
    "client_of",
    "header",
    "owned_by",
    "owner_of",
    "owners_of",
    "peer_of",
    "share_of",
    "trust",
]

OPEN_PATHS = frozenset({"/health"})
SIGNED_IN = "qserve.signed_in"
"""In the scope of a request whose browser has signed in: it needs no key."""
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
        # No early exit: the time taken must not reveal which key is similar.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


class GuardedKeys:
    """Checks keys and throttles guessing, for the API and the UI's sign-in together."""

    def __init__(self, keys: Sequence[str], throttle: KeyThrottle | None = None, named: KeyBook | None = None) -> None:
        """`throttle`: counts wrong keys; shared with everything else that checks keys. `named`: further keys; None:
        there are none, also not later."""
        self._keys = Keys(keys)
        self._throttle = throttle or KeyThrottle()
        self._named = named

    def __bool__(self) -> bool:
        return bool(self._keys) or self._named is not None

    def holds(self, token: bytes) -> bool:
        """Whether `token` is a valid key. Raises ApiError 401 for one that has expired."""
        is_right = self._keys.holds(token)
        entry = None if self._named is None else self._named.of_token(token)
        if is_right or entry is None:
            return is_right
        check_not_expired(entry)
        return True

    async def admit(self, scope: Scope, token: bytes) -> bool:
        """Whether `token` is valid; answers after a delay if the address has sent many wrong ones."""
        connection: BoundedHttp | None = scope.get(CONNECTION)
        address = peer_of(scope)
        is_trusted = connection is not None and connection.is_trusted
        pause_s = self._throttle.pause_s(address, is_trusted=is_trusted)
        is_right = self.holds(token)
        if is_right:
            if not is_trusted:
                trust(scope)  # before the delay: meanwhile the connection must not be evicted in favour of others
        else:
            self._throttle.count_wrong(address)
            if connection is not None:
                connection.distrust()
        if pause_s:
            await asyncio.sleep(pause_s)
        return is_right


class KeyAuth:
    """ASGI middleware: checks the Host if it is pinned, then the key."""

    def __init__(self, app: ASGIApp, keys: GuardedKeys, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._keys = keys
        self._hosts = allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            check_host(scope, self._hosts)
            if scope["path"] not in OPEN_PATHS and not scope.get(SIGNED_IN):
                if self._keys:
                    await self._check(scope)
                else:
                    trust(scope)
        await self._app(scope, receive, send)

    async def _check(self, scope: Scope) -> None:
        token = _token(scope)
        if not await self._keys.admit(scope, token):
            raise ApiError(401, "the API key is not one of this gateway's keys", "invalid_api_key")
        owner = _owner(token)
        scope[_CLIENT], scope[_OWNER] = f"{network_of(peer_of(scope))} {owner[:16]}", owner


@lru_cache(maxsize=1024)  # of accepted keys alone
def _owner(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest()[:32]


class AdminKeys:
    """Keys for routes that restart or change the service."""

    def __init__(self, keys: Sequence[str], throttle: KeyThrottle) -> None:
        self._keys = GuardedKeys(keys, throttle)

    def __bool__(self) -> bool:
        return bool(self._keys)

    async def check(self, scope: Scope, instead: str, of: str = "--admin-key-file") -> None:
        """403 without such a key; `instead`: what else does the same. `of`: the flags that name such keys."""
        if not self._keys:
            message = f"this service has no admin key; start it with --admin-key-file FILE, or {instead}"
            raise ApiError(403, message, "not_admin")
        if not await self._keys.admit(scope, _token(scope)):
            raise ApiError(403, f"this needs a key from {of}; or {instead}", "not_admin")


def client_of(scope: Scope) -> str:
    """Identity of a client for fair shares: its accepted key, if any, and its address (IPv6: the /64)."""
    client: str = scope.get(_CLIENT) or network_of(peer_of(scope))
    return client


def owner_of(scope: Scope) -> str:
    """Owner of a request's files: a digest of its key, "" if the gateway needs no key."""
    owner: str = scope.get(_OWNER, "")
    return owner


def owners_of(keys: Sequence[str]) -> frozenset[str]:
    """The owners of requests with these keys."""
    return frozenset(_owner(key.encode()) for key in keys)


def owned_by(owner: str) -> dict[str, str]:
    """What a scope holds of a request that is made for this owner, without its key."""
    return {_OWNER: owner}


def share_of(scope: Scope) -> str:
    """Whom a request counts for where work is shared out: its key, or without keys its address (IPv6: the /64)."""
    return owner_of(scope) or network_of(peer_of(scope))


def trust(scope: Scope) -> None:
    """Marks the connection of an accepted request as trusted: it is evicted last."""
    connection: BoundedHttp | None = scope.get(CONNECTION)
    if connection is not None:
        connection.trust()


def peer_of(scope: Scope) -> str:
    """The client's address; "" if there is none."""
    return scope["client"][0] if scope.get("client") else ""


def _token(scope: Scope) -> bytes:
    """The API key of a request: the bearer token, or Anthropic's header x-api-key."""
    authorization = header(scope, b"authorization")
    token = bearer_token(authorization)
    if authorization and not token:
        # Ignoring it would accept a credential without checking it.
        message = "the Authorization header has no key; send Authorization: Bearer <key>, or x-api-key alone"
        raise ApiError(401, message, "invalid_api_key")
    token = token or header(scope, b"x-api-key")
    if not token:
        raise ApiError(401, "no API key given; send the header Authorization: Bearer <key>", "missing_api_key")
    return token


def check_host(scope: Scope, hosts: Sequence[str]) -> None:
    """421 unless the Host header is one of `hosts`; without any, all are accepted."""
    if hosts and _host_name(header(scope, b"host")) not in {host.lower().encode() for host in hosts}:
        names = ", ".join(sorted(hosts))
        message = f"this gateway accepts the host names {names}; use one of them, or start it with an API key"
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
    """`[::1]:8000` → `[::1]`, `localhost:8000` → `localhost`; b"" if malformed."""
    match = _HOST.fullmatch(host)
    return match[1].lower() if match is not None else b""
