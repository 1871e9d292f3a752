"""From method and path to the endpoint. A dictionary: no pattern is tried, and no answer comes from a framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.types import Receive, Scope, Send

from qserve.gateway.routes import Route, route_template
from qserve.wire.errors import ApiError

__all__ = ["Dispatch", "Endpoint"]

Endpoint = Callable[[Scope, Receive, Send], Awaitable[None]]


class Dispatch:
    """The innermost ASGI app. A template's last part, `{model}`, takes the rest of the path, slashes included."""

    def __init__(self, endpoints: Mapping[Route, Endpoint]) -> None:
        self._endpoints = {(route.path, route.method): endpoint for route, endpoint in endpoints.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        template = route_template(path)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        endpoint = self._endpoints.get((template, method))
        if endpoint is None:
            raise self._refusal(template, scope["method"])
        if template != path:
            scope["path_params"] = {"model": path.removeprefix(template[: template.index("{")])}
        await endpoint(scope, receive, send)

    def _refusal(self, template: str, method: str) -> ApiError:
        allowed = [known for path, known in self._endpoints if path == template]
        if not allowed:
            return ApiError(404, "there is no such route; /openapi.json lists them", "route_not_found")
        allow = ", ".join(allowed)
        return ApiError(405, f"{template} takes {allow}, not {method}", "method_not_allowed", allow=allow)
