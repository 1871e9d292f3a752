"""`--beside-service`: a running service makes room for a training run, and gets it back at its end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from qserve.client.answer import Unreachable, is_error
from qserve.client.http import ask
from qserve.errors import UsageError

__all__ = ["Room", "room_in"]

_PATH = "/v1/qserve/room"
_LOOK_S, _TIMEOUT_S = 0.5, 30.0
# Running requests of the models that leave finish first.
_PATIENCE_S = 600.0
_RENEWALS = 3
"""So many within a lease: one that is lost costs nothing."""


class Room:
    """What the service has left to this run. A thread renews it until `give_back`."""

    def __init__(self, url: str, api_key: str, policy: str) -> None:
        self._address = url.rstrip("/").removesuffix("/v1") + _PATH
        self._api_key = api_key or None
        self._wanted: dict[str, Any] = {"policy": policy}
        self._is_over = threading.Event()

    def wait(self) -> None:
        """Until all models that may leave have left. Raises UsageError where none can, or it takes too long."""
        until_s = time.monotonic() + _PATIENCE_S
        while not (given := self._sent())["is_granted"]:
            self._wanted["room"] = given["room"]
            if time.monotonic() > until_s:
                self.give_back()
                raise UsageError(f"the service at {self._address} made no room within {_PATIENCE_S:g} s")
            time.sleep(_LOOK_S)
        self._wanted["room"] = given["room"]
        self._renewing = threading.Thread(target=self._renew, args=(given["lease_s"] / _RENEWALS,), daemon=True)
        self._renewing.start()

    def shrink(self, ram_bytes: int, card_bytes: int) -> None:
        """What the run takes is known: models that fit beside it may come back."""
        self._wanted |= {"ram_bytes": ram_bytes, "card_bytes": card_bytes}
        self._sent()

    def give_back(self) -> None:
        """The run is over. Where the service is gone, so is the room."""
        self._is_over.set()
        with contextlib.suppress(Unreachable):
            if "room" in self._wanted:
                address = f"{self._address}/{self._wanted['room']}"
                ask("DELETE", address, timeout_s=_TIMEOUT_S, api_key=self._api_key)

    def _renew(self, every_s: float) -> None:
        while not self._is_over.wait(every_s):
            with contextlib.suppress(Unreachable, UsageError):
                self._sent()

    def _sent(self) -> Mapping[str, Any]:
        try:
            answer = ask("POST", self._address, timeout_s=_TIMEOUT_S, api_key=self._api_key, body=dict(self._wanted))
        except Unreachable as error:
            raise UsageError(f"--beside-service: no service answers at {self._address}: {error}") from None
        if is_error(answer.status):
            raise UsageError(f"--beside-service: {self._address} answered {answer.status}: {answer.message()}")
        document: Mapping[str, Any] = answer.json()
        return document


@contextlib.contextmanager
def room_in(url: str | None, api_key: str, policy: str) -> Iterator[Room | None]:
    """The room, for as long as the context lasts; None without `url`."""
    if url is None:
        yield None
        return
    room = Room(url, api_key, policy)
    click.echo(f"waiting until the models of {url} have left", err=True)
    room.wait()
    try:
        yield room
    finally:
        room.give_back()
