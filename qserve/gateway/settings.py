"""Settings of the gateway. Each default exists once, here."""

from __future__ import annotations

from dataclasses import dataclass, field

from qserve.errors import UsageError
from qserve.units import MIB

__all__ = ["GatewaySettings"]


@dataclass(frozen=True)
class GatewaySettings:
    """How one gateway guards and relays.

    Attributes:
        keys: API keys; any of them opens every route. Without any, the gateway is open to all who reach its port.
        admin_keys: keys that may administer the service as well (POST /v1/qserve/restart); none: nobody may over HTTP.
        key_file: keys with names, and what each may do (`gateway/keys/entries.py`); "": none. It is read again when it
            changes.
        cors_origins: browser origins that may call, spelled exactly (`https://chat.example.org`); none: CORS is off.
        allowed_hosts: names that a request's Host header may carry, without the port; empty: any. With no key on
            loopback this is what keeps a web page from reaching the gateway through a DNS name of its own.
        shared_prefix_cache: clients find each other's prompts in the engine's cache, and so may learn of them.
        max_queue: requests that may wait for one worker; more get 429.
        max_bodies_bytes: request bodies in memory; further ones wait unread, then get 429.
        max_body_bytes: a longer request body gets 413.
        body_idle_timeout_s: a body gets 408 if nothing arrives for so long.
        client_stall_timeout_s: a client that reads nothing for so long counts as disconnected.
        connect_timeout_s: bound on opening a connection to a worker. Nothing bounds how long an answer may take.
        watch_interval_s: how often the workers' states are polled.
        resume_wait_s: a stream whose worker died waits so long for another, or for the next life of the only one, and
            is continued there; 0: it ends with an error.
        load_wait_s: how long a request waits for a model that is loaded on demand.
        max_responses_bytes: background responses in memory, of the whole service.
        keep_responses_s: how long one is kept after its end.
    """

    keys: tuple[str, ...] = field(default=(), repr=False)
    admin_keys: tuple[str, ...] = field(default=(), repr=False)
    key_file: str = ""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    shared_prefix_cache: bool = False
    max_queue: int = 256
    max_bodies_bytes: int = 256 * MIB
    max_body_bytes: int = 16 * MIB
    body_idle_timeout_s: float = 30.0
    client_stall_timeout_s: float = 300.0
    connect_timeout_s: float = 5.0
    watch_interval_s: float = 0.2
    resume_wait_s: float = 60.0
    load_wait_s: float = 600.0
    max_responses_bytes: int = 128 * MIB
    keep_responses_s: float = 3600.0

    @property
    def needs_key(self) -> bool:
        """Whether requests need a key."""
        return bool(self.keys or self.key_file)

    def __post_init__(self) -> None:
        for key in (*self.keys, *self.admin_keys):
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise UsageError("an API key must be printable ASCII without spaces, and not empty; change --api-key")
        for origin in self.cors_origins:
            if "://" not in origin or origin.endswith("/") or "*" in origin:
                raise UsageError(
                    f"{origin!r} is not an origin for CORS; write scheme and host as the browser does, "
                    "for example https://chat.example.org (no '*', no slash at the end)"
                )
        if self.max_queue < 0 or self.max_body_bytes < 1:
            raise UsageError(
                f"max_queue {self.max_queue} and max_body_bytes {self.max_body_bytes}: "
                "the queue may be 0 or longer, the body limit must be at least 1 byte"
            )
