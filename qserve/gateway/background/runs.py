"""Asks the gateway's own app for each background response, whoever waits for it, and keeps what comes.

The app asks for no key and sends the request through everything that others go through: checks, admission in its
client's share, relay, continuation elsewhere where a worker dies, metrics, the run store.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from starlette.types import ASGIApp, Message, Scope

from qserve.gateway.auth import owned_by
from qserve.gateway.background.growing import GrowingResponse, fields_of
from qserve.gateway.background.store import Kept, ResponseStore
from qserve.gateway.own_request import own_request
from qserve.gateway.relay.call import ON_QUEUED
from qserve.wire.errors import ApiError, internal_error

__all__ = ["Asker", "EventPage", "LocalRuns", "Runs"]

PATH = "/v1/responses"
_EXPIRE_S = 5.0
_PAGE_BYTES = 64 * 1024
_WAIT_S = 5.0


class Asker(NamedTuple):
    """Who asks: the owner of the response (`auth.owner_of`), whose share it takes, and headers to pass on."""

    owner: str
    share: str
    address: str
    headers: Sequence[tuple[str, str]] = ()


class EventPage(NamedTuple):
    """Events in order: their text, the `sequence_number` of the last one so far, whether no more will come."""

    text: str
    last: int
    is_last: bool


class Runs(Protocol):
    """What the routes need. Raises ApiError 404 where the owner has no such response."""

    async def create(self, asker: Asker, body: bytes) -> str:
        """Begin; returns the response object. Raises ApiError for what is refused before it waits for a slot."""

    async def document(self, response_id: str, owner: str) -> str:
        """The response object as it stands."""

    async def events(self, response_id: str, owner: str, after: int) -> EventPage:
        """Some events after number `after`, as soon as there are any; perhaps none, after a while."""

    async def cancel(self, response_id: str, owner: str) -> str:
        """End it, if it has not ended; returns the response object."""

    async def delete(self, response_id: str, owner: str) -> None:
        """Forget it, and end it before if it runs."""


class LocalRuns:
    """`Runs` in the process that asks the workers. `run` must run meanwhile."""

    def __init__(self, app: ASGIApp, max_bytes: int, keep_s: float) -> None:
        """`app`: the gateway without keys."""
        self._app = app
        self._store = ResponseStore(max_bytes, keep_s)
        self._running: dict[Kept, _Run] = {}

    @property
    def num_bytes(self) -> int:
        """What all responses hold."""
        return self._store.num_bytes

    async def run(self) -> None:
        """Forgets old responses until it is cancelled, which ends all that run."""
        try:
            while True:
                await asyncio.sleep(_EXPIRE_S)
                self._store.expire()
        finally:
            tasks = [run.task for run in self._running.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def create(self, asker: Asker, body: bytes) -> str:
        fields = fields_of(body)
        response = GrowingResponse(f"resp_{secrets.token_hex(16)}", int(time.time()), fields)
        kept = self._store.add(response, asker.owner, asker.share, len(body))
        asked = {**fields, "stream": True, "store": False}
        del asked["background"]
        run = _Run(self._store, kept)
        self._running[kept] = run
        run.task = asyncio.create_task(run.ask(self._app, asker, msgspec.json.encode(asked)))
        run.task.add_done_callback(lambda _: self._running.pop(kept, None))
        try:
            await run.is_accepted
        except BaseException:  # it was refused, or the client left before it knew the id
            run.leave()
            self._store.remove(kept)
            raise
        return response.document().decode()

    async def document(self, response_id: str, owner: str) -> str:
        return self._store.find(response_id, owner).response.document().decode()

    async def events(self, response_id: str, owner: str, after: int) -> EventPage:
        kept = self._store.find(response_id, owner)
        response, run = kept.response, self._running.get(kept)
        if after + 1 >= len(response.events) and not response.has_ended and run is not None:
            await run.changes(_WAIT_S)
        page: list[bytes] = []
        num_bytes, last = 0, after
        for event in response.events[after + 1 : after + 1 + _PAGE_BYTES // 64]:
            if page and num_bytes + len(event) > _PAGE_BYTES:
                break
            page.append(event)
            num_bytes += len(event)
            last += 1
        is_last = response.has_ended and last + 1 >= len(response.events)
        return EventPage(b"".join(page).decode(), last, is_last)

    async def cancel(self, response_id: str, owner: str) -> str:
        kept = self._store.find(response_id, owner)
        self._end(kept)
        return kept.response.document().decode()

    async def delete(self, response_id: str, owner: str) -> None:
        kept = self._store.find(response_id, owner)
        self._end(kept)
        self._store.remove(kept)

    def _end(self, kept: Kept) -> None:
        kept.response.cancel()
        self._store.count(kept)
        if (run := self._running.get(kept)) is not None:
            run.leave()


class _Run:
    """One request to the app: ASGI's `receive` and `send`, as a client that reads everything and leaves when told."""

    task: asyncio.Task[None]

    def __init__(self, store: ResponseStore, kept: Kept) -> None:
        self._store = store
        self._kept = kept
        loop = asyncio.get_running_loop()
        self.is_accepted: asyncio.Future[None] = loop.create_future()
        """Done when it waits for a slot; with an ApiError if it is refused before."""
        self._has_left: asyncio.Future[None] = loop.create_future()
        self._changed = asyncio.Event()
        self._body: bytes | None = None
        self._status, self._headers = 0, dict[bytes, bytes]()
        self._rest = b""

    def leave(self) -> None:
        """The client closes its connection: the worker's slot is freed."""
        if not self._has_left.done():
            self._has_left.set_result(None)
        self._wake()

    async def changes(self, within_s: float) -> None:
        """Returns when there are more events, or after a while."""
        try:
            async with asyncio.timeout(within_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def ask(self, app: ASGIApp, asker: Asker, body: bytes) -> None:
        """Ask, and keep the answer."""
        self._body = body
        loop, response = asyncio.get_running_loop(), self._kept.response

        def queued() -> None:  # a full queue refuses it before this is called
            loop.call_soon(self._accept)

        try:
            await app({**_scope(asker, len(body)), ON_QUEUED: queued}, self._receive, self._send)
        except asyncio.CancelledError:
            self._fail(ApiError(503, "the service stops", "worker_not_ready"))
            raise
        except Exception:  # logged where it happened
            self._fail(internal_error())
        else:
            if self._status >= 400:
                self._fail(_error_of(self._status, self._headers, self._rest))
            elif not response.has_ended:
                self._fail(ApiError(502, "the worker's answer ended before it was complete", "worker_error"))
        finally:
            self._accept()
            self._wake()

    def _accept(self) -> None:
        if not self.is_accepted.done():
            self.is_accepted.set_result(None)

    def _fail(self, error: ApiError, *, drops_output: bool = False) -> None:
        if not self.is_accepted.done():
            self.is_accepted.set_exception(error)
        self._kept.response.fail(error, drops_output=drops_output)
        self._store.count(self._kept)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await asyncio.shield(self._has_left)
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
            return
        self._rest += message.get("body", b"")
        if self._status >= 400:
            if not message.get("more_body", False) and not self.is_accepted.done():
                self._fail(_error_of(self._status, self._headers, self._rest))
            return
        *events, self._rest = self._rest.split(b"\n\n")
        for event in events:
            self._take(event)
        if events:
            self._wake()

    def _take(self, event: bytes) -> None:
        response = self._kept.response
        if response.has_ended:
            return
        if self._store.has_room(self._kept, response.cost_of(event)):
            response.take(event)
            self._store.count(self._kept)
        else:
            self._fail(self._store.full(), drops_output=True)
            self.leave()


def _error_of(status: int, headers: Mapping[bytes, bytes], body: bytes) -> ApiError:
    """The error that the app answered."""
    told: Mapping[str, Any] = json.loads(body)["error"]
    wait = headers.get(b"retry-after", b"")
    retry_after_s = int(wait) if wait.isdigit() else None
    return ApiError(status, told["message"], told["code"] or "worker_error", told.get("param"), retry_after_s)


def _scope(asker: Asker, num_bytes: int) -> Scope:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in asker.headers]
    owned = owned_by(asker.owner) if asker.owner else {}
    return {**own_request(PATH, num_bytes, headers, asker.address), **owned}
