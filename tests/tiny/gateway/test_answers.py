"""Every refusal has its status, OpenAI's shape and a request id; no HTML, no traceback, no key."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re

import aiohttp
import pytest

from qserve.gateway.endpoints import Endpoints
from qserve.gateway.routes import ROUTES, RelayedRoute, dialect_of
from qserve.gateway.settings import GatewaySettings
from qserve.wire.errors import Dialect
from qserve.worker.base import WorkerState

pytestmark = pytest.mark.parametrize("num_processes", [1, 2])

CHAT = "/v1/chat/completions"
ORIGIN = "https://chat.example.org"


async def _error(response, status):
    """The error of an answer with this status, its outer shape checked."""
    body = await response.read()
    assert response.status == status, body
    assert response.content_type == "application/json" and response.headers["x-request-id"]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
async def test_every_route_but_health_wants_the_key(running, route):
    path = route.path.replace("{model}", "fake").replace("{response_id}", "resp_1")
    dialect = dialect_of(route.path)
    async with running() as stack, aiohttp.ClientSession() as stranger:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "Bearer wk-internal-93ab"}):
            async with stranger.request(route.method, stack.url + path, headers=headers) as response:
                if route.path == "/health":
                    assert response.status == 200
                    continue
                if dialect is Dialect.ANTHROPIC:
                    assert set(await response.json()) == {"type", "error"}
                    error = (await response.json())["error"]
                elif dialect is Dialect.TEI:
                    assert set(await response.json()) == {"error", "error_type", "code"}
                    error = {"type": "authentication_error"}
                else:
                    error = await _error(response, 401)
                assert response.status == 401 and error["type"] == "authentication_error"
                assert response.headers["www-authenticate"] == "Bearer"


BAD_BODIES = {
    "no JSON": (b"{", 400, "invalid_json", None),
    "no UTF-8": (b'{"model": "\xff"}', 400, "invalid_json", None),
    "a list": (b"[]", 400, "invalid_value", None),
    "empty": (b"", 400, "invalid_json", None),
    "unknown field": (
        b'{"model":"fake","messages":[{"role":"user","content":"x"}],"tempreature":1}',
        400,
        "unsupported_field",
        "tempreature",
    ),
    "unsupported field": (
        b'{"model":"fake","messages":[{"role":"user","content":"x"}],"functions":[{}]}',
        400,
        "unsupported_field",
        "functions",
    ),
    "wrong value": (
        b'{"model":"fake","messages":[{"role":"user","content":"x"}],"temperature":3}',
        400,
        "invalid_value",
        "temperature",
    ),
    "NaN": (b'{"model":"fake","messages":[{"role":"user","content":"x"}],"temperature":NaN}', 400, None, None),
    "no messages": (b'{"model":"fake","messages":[]}', 400, "invalid_value", "messages"),
    "unknown model": (b'{"model":"gpt-9","messages":[{"role":"user","content":"x"}]}', 404, "model_not_found", "model"),
    "deep": (b'{"model":' + b"[" * 100_000, 400, "invalid_json", None),
}


@pytest.mark.parametrize("case", BAD_BODIES)
async def test_a_wrong_body_is_refused_by_name(running, case):
    body, status, code, param = BAD_BODIES[case]
    async with running() as stack:
        headers = {"content-type": "application/json"}
        async with stack.http.post(stack.url + CHAT, data=body, headers=headers) as response:
            error = await _error(response, status)
        assert code in (None, error["code"])
        assert param in (None, error["param"])
        if code == "model_not_found":
            assert "'fake'" in error["message"] and "'org/Fake-8B'" in error["message"]


async def test_wrong_route_method_type_and_model(running):
    async with running() as stack:
        for method, path, status, code in (
            ("GET", "/v1/nope", 404, "route_not_found"),
            ("GET", "/", 404, "route_not_found"),
            ("GET", "/docs", 404, "route_closed"),
            ("POST", "/sleep", 404, "route_closed"),
            ("GET", "/v1/responses/resp_1", 404, "response_not_found"),
            ("GET", CHAT, 405, "method_not_allowed"),
            ("DELETE", "/health", 405, "method_not_allowed"),
            ("POST", "/v1/models/fake", 405, "method_not_allowed"),
            ("GET", "/v1/models/gpt-9", 404, "model_not_found"),
            ("POST", CHAT, 415, "not_json"),
        ):
            async with stack.http.request(method, stack.url + path) as response:
                assert (await _error(response, status))["code"] == code
                assert ("allow" in response.headers) == (status == 405)
        async with stack.http.get(stack.url + "/v1/models/org/Fake-8B") as response:
            assert (await response.json())["root"] == "fake"
        async with stack.http.head(stack.url + "/health") as response:
            assert response.status == 200


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_and_the_connection_lives_on(running, request_chat, chunked):
    async def pieces():
        for _ in range(64):
            yield b" " * 65_536

    async with running(max_body_bytes=1_000_000) as stack:
        data = pieces() if chunked else io.BytesIO(b" " * 4_194_304)
        headers = {"content-type": "application/json"}
        async with stack.http.post(stack.url + CHAT, data=data, headers=headers) as response:
            assert (await _error(response, 413))["code"] == "body_too_large"
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=1)) as response:
            assert response.status == 200


async def test_a_body_that_stops_arriving_is_408(running):
    async with running(body_idle_timeout_s=0.05) as stack:

        async def stalling():
            yield b'{"model"'
            await stack.until(lambda _: answered)

        answered = []
        headers = {"content-type": "application/json"}
        async with stack.http.post(stack.url + CHAT, data=stalling(), headers=headers) as response:
            assert (await _error(response, 408))["code"] == "body_timeout"
            answered.append(True)


@pytest.mark.parametrize("state", [state for state in WorkerState if state is not WorkerState.READY])
async def test_a_worker_that_is_not_ready_is_503_with_the_supervisors_words(running, request_chat, state):
    async with running() as stack:
        stack.status.state, stack.status.detail = state, "loading shard 3 of 7"
        code = "draining" if state is WorkerState.DRAINING else "worker_not_ready"
        async with stack.http.post(stack.url + CHAT, json=request_chat()) as response:
            error = await _error(response, 503)
            assert error["code"] == code and "loading shard 3 of 7" in error["message"]
            assert int(response.headers["retry-after"]) >= 1
        await _tells(stack, 503)
        async with stack.http.get(stack.url + "/ready") as response:
            body = await response.json()
            assert response.status == 503 and body["error"]["code"] == code
            (worker,) = body["workers"]
            assert (worker["name"], worker["state"], worker["detail"]) == ("chat", state, "loading shard 3 of 7")
        for path in ("/health", "/v1/models", "/metrics", "/v1/qserve/memory", "/version", "/openapi.json"):
            async with stack.http.get(stack.url + path) as response:
                assert response.status == 200
        assert await stack.gauge('qserve_gateway_worker_ready{worker="chat"}') == 0
        stack.status.state = WorkerState.READY
        await _tells(stack, 200)
        async with stack.http.get(stack.url + "/ready") as response:
            assert response.status == 200 and (await response.json())["status"] == "ready"


async def _tells(stack, status):
    """Of several processes each hears of a worker's state a moment after it changed."""
    async with asyncio.timeout(60):
        while True:
            async with stack.http.get(stack.url + "/ready") as response:
                if response.status == status:
                    return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("fault", "status", "code"), [("500", 500, "oom"), ("html", 502, "worker_error")])
async def test_a_workers_own_errors(running, request_chat, fault, status, code):
    async with running() as stack, stack.http.post(stack.url + CHAT, json=request_chat(fault=fault)) as response:
        body = await response.json()
        assert response.status == status and body["error"]["code"] == code


async def test_a_wrong_internal_key_is_the_servers_fault_not_the_clients(running, request_chat):
    async with running() as stack:
        other = stack.status.facts
        stack.worker.kill()
        stack.worker.start(key="another")
        try:
            async with stack.http.post(stack.url + CHAT, json=request_chat()) as response:
                assert (await _error(response, 502))["code"] == "worker_error"
            assert other.key not in await response.text()
        finally:
            stack.worker.kill()


async def test_request_ids_go_everywhere(running, request_chat):
    async with running() as stack:
        headers = {"x-request-id": "job-7/step_3"}
        async with stack.http.post(stack.url + CHAT, json=request_chat(chunks=1), headers=headers) as response:
            assert response.headers.getall("x-request-id") == ["job-7/step_3"]
        assert (await stack.debug())["last_headers"]["x-request-id"] == "job-7/step_3"
        async with stack.http.get(stack.url + "/nope", headers=headers) as response:
            assert response.headers["x-request-id"] == "job-7/step_3"
        async with stack.http.get(stack.url + "/health", headers={"x-request-id": "x" * 129}) as response:
            assert re.fullmatch(r"req-[0-9a-f]+-[0-9a-f]+", response.headers["x-request-id"])


async def test_cors_is_off_unless_origins_are_named(running):
    preflight = {"origin": ORIGIN, "access-control-request-method": "POST"}
    async with running() as stack, aiohttp.ClientSession() as browser:
        response = await browser.options(stack.url + CHAT, headers=preflight)
        await _error(response, 401)
        assert not any(name.lower().startswith("access-control") for name in response.headers)


async def test_cors_admits_exactly_the_named_origins(running):
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-stainless-os"}
    async with running(cors_origins=(ORIGIN,)) as stack, aiohttp.ClientSession() as browser:
        async with browser.options(stack.url + CHAT, headers={"origin": ORIGIN, **asked}) as response:
            assert response.status == 200
            assert response.headers["access-control-allow-origin"] == ORIGIN
            assert "x-stainless-os" in response.headers["access-control-allow-headers"]
        for origin in ("https://evil.example", "null", ORIGIN + ".evil.example", "http://chat.example.org"):
            async with browser.options(stack.url + CHAT, headers={"origin": origin, **asked}) as response:
                assert response.status == 400 and "access-control-allow-origin" not in response.headers
        async with browser.get(stack.url + "/v1/models", headers={"origin": ORIGIN}) as response:
            await _error(response, 401)  # a preflight works without the key, nothing else does
            assert response.headers["access-control-allow-origin"] == ORIGIN
        async with stack.http.get(stack.url + "/v1/models", headers={"origin": "https://evil.example"}) as response:
            assert response.status == 200 and "access-control-allow-origin" not in response.headers


async def test_a_fault_of_ours_is_a_500_with_the_id_and_the_traceback_stays_in_the_log(running, monkeypatch, caplog):
    async def broken(self, scope, receive, send):
        raise ZeroDivisionError("the inside of qserve")

    monkeypatch.setattr(Endpoints, "version", broken)
    async with running() as stack:
        async with stack.http.get(stack.url + "/version", headers={"x-request-id": "job-9"}) as response:
            error = await _error(response, 500)
        assert error["code"] == "internal_error" and "job-9" in error["message"]
        assert "inside of qserve" not in await response.text()
    assert "ZeroDivisionError" in caplog.text and "job-9" in caplog.text


async def test_the_log_has_a_line_per_request_and_no_key_and_no_content(running, request_chat, caplog):
    caplog.set_level(logging.DEBUG)
    async with running() as stack:
        headers = {"x-request-id": "job-1"}
        body = request_chat(chunks=3, user="very-private-text")
        async with stack.http.post(stack.url + CHAT + "?q=very-private-query", json=body, headers=headers) as response:
            await response.read()
        async with stack.http.get(stack.url + "/v1/models/very-private-path") as response:
            await response.read()
        async with stack.http.get(stack.url + "/", headers={"authorization": "Bearer sk-guessed"}) as response:
            await response.read()
    lines = [record.getMessage() for record in caplog.records if record.name == "qserve.access"]
    assert any(
        re.fullmatch(rf"request_id=job-1 method=POST route={CHAT} status=200 ms=[\d.]+ model=fake worker=chat", line)
        for line in lines
    ), lines
    assert len(lines) == 3
    for secret in ("sk-client-4f6c", "wk-internal-93ab", "sk-guessed", "very-private", "Count!"):
        assert secret not in caplog.text
    assert "sk-client-4f6c" not in repr(GatewaySettings(keys=("sk-client-4f6c",)))


async def test_the_openapi_document_is_behind_the_key_and_complete(running):
    async with running() as stack, stack.http.get(stack.url + "/openapi.json") as response:
        document = await response.json()
    assert {(method.upper(), path) for path, item in document["paths"].items() for method in item} == {
        (route.method, route.path)
        for route in ROUTES
        if not isinstance(route, RelayedRoute) or route.offered(stack.status.facts)
    }
