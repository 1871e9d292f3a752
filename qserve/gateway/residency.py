"""Models that are loaded on demand, over HTTP: what is in memory, and what is to be loaded, unloaded or pinned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from qserve.gateway.auth import AdminKeys, header
from qserve.gateway.bodies import Bodies
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.relay.replicas import Replicas
from qserve.gateway.relay.serving import named
from qserve.gateway.respond import send_json
from qserve.wire.errors import ApiError
from qserve.wire.room import RoomRequest

__all__ = [
    "ACTIONS",
    "RESIDENCY_ERRORS",
    "ROOM",
    "ROOM_ERRORS",
    "ROOM_INPUTS",
    "ResidencyControl",
    "ResidencyEndpoints",
    "nothing_on_demand",
]

ResidencyControl = Callable[[str, Any], Awaitable[Any]]
"""`await control(action, group)`: the model's document after it; of `show` those of all models. Raises ApiError.

Of `room` it takes the fields of a `RoomRequest`, of `no room` the room's id, and returns the room.
"""

ROOM = "/v1/qserve/room"
ACTIONS = ("load", "unload", "pin", "unpin")
RESIDENCY_ERRORS = {
    "403": "the request or the server has no admin key, and the server needs keys",
    "404": "no model of this name is served here",
    "409": "its models are always in memory, or it has no room beside the pinned ones",
}


_OF_ROOMS = {"403": RESIDENCY_ERRORS["403"], "404": "the room is not given, or was not renewed in time"}
ROOM_ERRORS = {
    "POST": {
        **_OF_ROOMS,
        "400": "a field is wrong",
        "408": "the body stopped arriving",
        "409": "its models are always in memory",
        "413": "the body is too large",
        "415": "the body is not declared as JSON",
        "429": "too many bodies are being read",
    },
    "DELETE": {**_OF_ROOMS, "409": "its models are always in memory"},
}
"""By method, then status."""
ROOM_INPUTS: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", ROOM): {
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RoomRequest"}}},
        }
    }
}


def nothing_on_demand() -> ApiError:
    """The error of a service whose models stay."""
    message = (
        "the models of this service are always in memory; a service whose models take turns is started with a file "
        "that lists them under models: (qserve up --config FILE)"
    )
    return ApiError(409, message, "always_resident")


class ResidencyEndpoints:
    """GET is open to whoever may ask the models; the actions to administrators, and where no key is needed to any
    program of this machine, but to no page in a browser.
    """

    def __init__(
        self,
        groups: Sequence[Replicas],
        keys: AdminKeys,
        control: ResidencyControl | None,
        bodies: Bodies,
        *,
        needs_key: bool,
    ) -> None:
        """`control` None: this gateway has no models on demand."""
        self._bodies = bodies
        self._groups, self._keys, self._control = groups, keys, control
        self._is_open = not needs_key and not keys

    async def models(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/qserve/models: each model with its state."""
        rows = _always_there(self._groups) if self._control is None else await self._control("show", "")
        await send_json(send, 200, {"object": "list", "data": rows})

    def of(self, action: str) -> Endpoint:
        """POST /v1/qserve/models/{model}/ACTION: 200 with the model's new state; a load goes on behind it."""

        async def endpoint(scope: Scope, receive: Receive, send: Send) -> None:
            await self._check(scope)
            group = named(self._groups, scope["path_params"]["model"])[0].group
            if self._control is None:
                raise nothing_on_demand()
            await send_json(send, 200, await self._control(action, group))

        return endpoint

    async def give_room(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/qserve/room: asked again until it is granted, and then to keep it."""
        await self._check(scope)
        async with self._bodies.read(scope, receive, is_json=True) as body:
            asked = RoomRequest.parse(body.data)
        if self._control is None:
            raise nothing_on_demand()
        await send_json(send, 200, await self._control("room", asked.model_dump()))

    async def take_room_back(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE /v1/qserve/room/{room}."""
        await self._check(scope)
        if self._control is None:
            raise nothing_on_demand()
        await send_json(send, 200, await self._control("no room", scope["path_params"]["room"]))

    async def _check(self, scope: Scope) -> None:
        """403 for who may not change what is in memory."""
        if not self._is_open or _is_of_a_browser(scope):
            await self._keys.check(scope, "stop the service, which frees all memory")


def _is_of_a_browser(scope: Scope) -> bool:
    return bool(header(scope, b"origin") or header(scope, b"sec-fetch-site"))


def _always_there(groups: Sequence[Replicas]) -> list[dict[str, Any]]:
    return [
        {
            "name": replicas.group,
            "models": list(replicas.facts.models),
            "role": replicas.role,
            "engine": replicas.facts.engine,
            "state": upstream.status.state.value,
            "detail": upstream.status.detail,
            "is_pinned": True,
            "num_requests": upstream.num_running_requests + upstream.num_waiting,
        }
        for replicas in groups
        for upstream in replicas.upstreams
    ]
