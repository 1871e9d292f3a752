"""Every path has the answer that is true of it: what is served with another method, what is known and not served, and
what is unknown. Below /v1/messages in Anthropic's shape, with the header that its clients read.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import aiohttp
import pytest

from qserve.gateway.routes import ROUTES, RelayedRoute, dialect_of, route_template
from qserve.gateway.unserved import why_not_served
from qserve.wire.errors import Dialect
from qserve.worker.wires import wire_named

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
PATHS = sorted({route.path for route in ROUTES})
_SDK_CALL = re.compile(r'self\._(get|post|delete|get_api_list|put|patch)\(\s*(?:path_template\(\s*)?f?"(/[^"?]*)')


def _filled(path: str) -> str:
    return re.sub(r"\{model\}", "fake", re.sub(r"\{(?!model)\w+\}", "id_1", path))


def _served(path: str) -> set[str]:
    """The methods of a path that a chat worker of the own engine, as the fake worker is one, or the gateway serves."""
    return {
        route.method
        for route in ROUTES
        if route.path == path
        and (not isinstance(route, RelayedRoute) or (route.method, route.path) in wire_named("").routes)
    }


async def _refusal(response: aiohttp.ClientResponse, path: str) -> tuple[str, str]:
    """Code (Anthropic's shape has none) and message, once the shape is seen to be that of the path."""
    body = await response.json()
    assert response.headers["x-request-id"]
    if path.startswith("/v1/messages"):
        assert response.headers["request-id"] == response.headers["x-request-id"]
        assert body["type"] == "error" and set(body["error"]) == {"type", "message"}
        return "", body["error"]["message"]
    assert "request-id" not in response.headers
    if dialect_of(route_template(path)) is Dialect.TEI and "error_type" in body:
        return body["code"], body["error"]
    return body["error"]["code"], body["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_wrong_method_is_told_the_right_ones(running, path):
    served = _served(path)
    async with running() as stack:
        for method in set(METHODS) - {route.method for route in ROUTES if route.path == path}:
            async with stack.http.request(method, stack.url + _filled(path)) as response:
                code, message = await _refusal(response, path)
                if not served or (path == "/" and method == "GET"):
                    assert response.status == 404 and "allow" not in response.headers
                    continue
                assert (response.status, code) == (405, "" if path.startswith("/v1/messages") else "method_not_allowed")
                allowed = set(response.headers["allow"].split(", "))
                assert allowed == served | ({"HEAD"} if "GET" in served else set())
                assert all(name in message for name in (*allowed, method, path))


@pytest.mark.parametrize("path", PATHS)
async def test_an_unknown_child_is_no_route_of_its_own(running, path):
    """`/v1/responses/resp_1/colour` is neither a response with slashes nor a method that is not allowed."""
    if path == "/":
        return
    async with running() as stack:
        for child in ("colour", "colour/red"):
            asked = f"{_filled(path)}/{child}"
            for method in METHODS:
                async with stack.http.request(method, stack.url + asked) as response:
                    template = route_template(asked)
                    if template != "unmatched":  # a name of the path's next part, or a model's, which holds slashes
                        assert template.startswith(path) and (
                            re.search(r"{model}|{adapter}", template) or child == "colour"
                        )
                        continue
                    code, message = await _refusal(response, asked)
                    assert response.status == 404
                    assert code in ("", "route_not_found", "route_not_served") and message
                    assert "is not an id" not in message and "takes" not in message


def _paths_of_sdks() -> set[tuple[str, str]]:
    found = set()
    for name, prefix in (("openai", "/v1"), ("anthropic", "")):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None
        for file in (Path(spec.origin).parent / "resources").rglob("*.py"):
            for verb, path in _SDK_CALL.findall(file.read_text()):
                method = "GET" if verb == "get_api_list" else verb.upper()
                found.add((method, prefix + re.sub(r"\{[^}]*\}", "id_1", path).rstrip("/")))
    assert len(found) > 300
    return found


async def test_routes_of_both_apis_are_served_or_said_to_be_theirs(running):
    """By the paths in the SDKs: a client learns what is not there and why, and that its own request is not wrong."""
    async with running() as stack:
        for method, path in sorted(_paths_of_sdks()):
            template = route_template(path)
            if template != "unmatched":
                assert why_not_served(path) is None or path.startswith("/v1/chat/completions/"), path
                continue
            async with stack.http.request(method, stack.url + path) as response:
                code, message = await _refusal(response, path)
            assert response.status == 404
            if code != "route_closed":  # vLLM has it, too, and the 404 says so
                assert code in ("", "route_not_served") and message.startswith(f"{path} is not served here: ")


async def test_every_answer_below_messages_has_its_id(running):
    """Whatever refuses it: no key, a body that is too long, compressed, no JSON, or for nobody."""
    async with running(max_body_bytes=1000) as stack, aiohttp.ClientSession() as stranger:
        json = {"content-type": "application/json"}
        for path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches", "/v1/messages/a/b"):
            asked = [
                (stranger, {}, {}, b"{}", 401),
                (stack.http, {}, {}, b"{}", 415),
                (stack.http, json, {}, b" " * 2000, 413),
                (stack.http, json, {"content-encoding": "gzip"}, b"{}", 415),
                (stack.http, json, {}, b"{", 400),
            ]
            for http, kind, more, data, status in asked:
                async with http.post(stack.url + path, data=data, headers={**kind, **more}) as response:
                    await _refusal(response, path)
                    known = path in PATHS or http is stranger
                    assert response.status == (status if known else 404)
