"""From method and path to the endpoint, by a dictionary: no patterns, no default answers of a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from qserve.gateway.routes import CLOSED, PAGE, Route, route_template
from qserve.wire.errors import ApiError

__all__ = ["Dispatch", "Endpoint"]

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


class Dispatch:
    """The innermost ASGI app. The value of a template's name goes into the scope's `path_params`."""

    def __init__(self, endpoints: Mapping[Route, Endpoint]) -> None:
        self._endpoints = {(route.path, route.method): endpoint for route, endpoint in endpoints.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        template = route_template(path)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get((template, method))
        if endpoint is None:
            raise self._refusal(path, template, scope["method"])
        if template != path:
            scope["path_params"] = _params(path, template)
        await endpoint(scope, receive, send)

    def _refusal(self, path: str, template: str, method: str) -> ApiError:
        if path in CLOSED:
            return ApiError(404, f"{path} of the engine is closed here: {CLOSED[path]}", "route_closed")
        allowed = [known for path, known in self._endpoints if path == template]
        if not allowed or (path == PAGE and method in ("GET", "HEAD")):
            return ApiError(404, "there is no such route; /openapi.json lists them", "route_not_found")
        allow = ", ".join(allowed)
        return ApiError(405, f"{template} takes {allow}, not {method}", "method_not_allowed", allow=allow)


def _params(path: str, template: str) -> dict[str, str]:
    """`/v1/models/org/b` under `/v1/models/{model}` → `{"model": "org/b"}`."""
    begin, _, rest = template.partition("{")
    name, _, end = rest.partition("}")
    return {name: path[len(begin) : len(path) - len(end)]}
