"""From method and path to the endpoint, by a dictionary: no patterns, no default answers of a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from qserve.gateway.routes import PAGE, Route
from qserve.gateway.telemetry.record import RECORD, RequestRecord
from qserve.gateway.unserved import why_not_served
from qserve.wire.errors import ApiError
from qserve.worker.wires import all_wires

__all__ = ["Dispatch", "Endpoint"]

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


class Dispatch:
    """The innermost ASGI app. The value of a template's name goes into the scope's `path_params`."""

    def __init__(
        self,
        endpoints: Mapping[Route, Endpoint],
        why_nobody_serves: Callable[[Route], ApiError | None],
        *,
        has_page: bool,
    ) -> None:
        """`why_nobody_serves`: the 404 for a route that no worker here has. `has_page`: browsers get one at `/`."""
        self._endpoints = {(route.path, route.method): endpoint for route, endpoint in endpoints.items()}
        self._routes = tuple(endpoints)
        self._why_nobody_serves = why_nobody_serves
        self._has_page = has_page
        self._closed = {path: why for wire in all_wires() for path, why in wire.closed.items()}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        path: str = scope["path"]
        record: RequestRecord = scope[RECORD]
        template = record.route
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get((template, method))
        if endpoint is None:
            raise self._refusal(path, template, scope["method"])
        if template != path:
            scope["path_params"] = _params(path, template)
        return endpoint(scope, receive, send)

    def _refusal(self, path: str, template: str, method: str) -> ApiError:
        if path in self._closed:
            return ApiError(404, f"{path} of the engine is closed here: {self._closed[path]}", "route_closed")
        known = [route for route in self._routes if route.path == template]
        if not known or (path == PAGE and method in ("GET", "HEAD")):
            return _unknown(path)
        unserved = {route: error for route in known if (error := self._why_nobody_serves(route)) is not None}
        allowed = self._methods(template, [route for route in known if route not in unserved])
        if not allowed:
            return unserved[known[0]]
        allow = ", ".join(allowed)
        return ApiError(405, f"{template} takes {allow}, not {method}", "method_not_allowed", allow=allow)

    def _methods(self, template: str, served: list[Route]) -> list[str]:
        """The methods of a path whose routes are `served`. HEAD is allowed where GET is."""
        methods = dict.fromkeys(route.method for route in served)
        if "GET" in methods or (template == PAGE and self._has_page):
            methods |= {"GET": None, "HEAD": None}
        return list(methods)


def _unknown(path: str) -> ApiError:
    if (why := why_not_served(path)) is not None:
        return ApiError(404, f"{path[:200]} is not served here: {why}", "route_not_served")
    return ApiError(404, "there is no such route; /openapi.json lists them", "route_not_found")


def _params(path: str, template: str) -> dict[str, str]:
    """`/v1/models/org/b` under `/v1/models/{model}` → `{"model": "org/b"}`."""
    begin, _, rest = template.partition("{")
    name, _, end = rest.partition("}")
    return {name: path[len(begin) : len(path) - len(end)]}
