"""GET, POST and DELETE of /v1/qserve/adapters."""

from __future__ import annotations

from starlette.types import Receive, Scope, Send

from qserve.gateway.adapters.control import AdapterControl
from qserve.gateway.auth import AdminKeys
from qserve.gateway.bodies import Bodies
from qserve.gateway.dispatch import Endpoint
from qserve.gateway.respond import send_json
from qserve.gateway.routes import Route
from qserve.wire.adapters import LoadAdapterRequest
from qserve.wire.errors import ApiError

__all__ = ["AdapterEndpoints"]


class AdapterEndpoints:
    """Guarded by the service's own keys: a key with a name may ask models, not change them."""

    def __init__(self, keys: AdminKeys | None, control: AdapterControl | None, bodies: Bodies) -> None:
        """`keys` None: the service needs no key. `control` None: nobody supervises the workers here."""
        self._keys = keys
        self._control = control
        self._bodies = bodies

    def of(self, route: Route) -> Endpoint:
        """The endpoint of a route of `ADAPTER_ROUTES`."""
        endpoint = {"GET": self.listed, "POST": self.load, "DELETE": self.unload}[route.method]

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            if self._keys is not None:
                await self._keys.check(scope, "use a key of --api-key-file", "--admin-key-file or --api-key-file")
            await endpoint(scope, receive, send)

        return guarded

    async def listed(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /v1/qserve/adapters."""
        await send_json(send, 200, await self._supervised.listed())

    async def load(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/qserve/adapters."""
        async with self._bodies.read(scope, receive, is_json=True) as body:
            asked = LoadAdapterRequest.parse(body.data)
        loaded = await self._supervised.load(asked.name, asked.path, asked.model, asked.load_inplace)
        await send_json(send, 200, loaded)

    async def unload(self, scope: Scope, receive: Receive, send: Send) -> None:
        """DELETE /v1/qserve/adapters/{adapter}."""
        await send_json(send, 200, await self._supervised.unload(scope["path_params"]["adapter"]))

    @property
    def _supervised(self) -> AdapterControl:
        if self._control is None:
            raise ApiError(501, "no process supervises the workers here", "not_supervised")
        return self._control
