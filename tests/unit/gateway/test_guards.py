"""What stands before a route: settings that make sense, keys, hosts, bodies, request ids."""

from __future__ import annotations

import asyncio

import pytest

from qserve.errors import UsageError
from qserve.gateway.auth import GuardedKeys, KeyAuth, bearer_token
from qserve.gateway.bodies import Bodies
from qserve.gateway.limits import BodyHead, ClientGone, read_body
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.record import RequestRecord
from qserve.wire.errors import ApiError


def _scope(path="/v1/models", **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {"type": "http", "method": "GET", "path": path, "headers": pairs}


async def _passes(scope, keys=("right",), hosts=()):
    reached = []

    async def app(scope, receive, send):
        reached.append(scope)

    await KeyAuth(app, GuardedKeys(keys), hosts)(scope, None, None)
    return bool(reached)


@pytest.mark.parametrize("value", ["Bearer right", "bearer right", "BEARER  right"])
async def test_a_right_key_passes(value):
    assert await _passes(_scope(authorization=value))


@pytest.mark.parametrize(
    "value", ["right", "Basic right", "Bearer", "Bearer ", "Bearer wrong", "Bearer righ", "Bearer right2"]
)
async def test_anything_else_does_not(value):
    with pytest.raises(ApiError) as refused:
        await _passes(_scope(authorization=value))
    assert refused.value.status == 401
    assert refused.value.headers["www-authenticate"] == "Bearer"
    assert "wrong" not in refused.value.message and "right" not in refused.value.message


async def test_anthropics_header_is_a_key_too():
    assert await _passes(_scope(x_api_key="right"))
    assert await _passes(_scope(x_api_key="other", authorization="Bearer right"))


async def test_a_key_beside_another_kind_of_credential_does_not_pass():
    with pytest.raises(ApiError) as refused:
        await _passes(_scope(x_api_key="right", authorization="Basic cmlnaHQ6cmlnaHQ="))
    assert refused.value.status == 401 and "x-api-key alone" in refused.value.message


async def test_two_authorization_headers_do_not_pass():
    scope = _scope(authorization="Bearer right")
    scope["headers"] *= 2
    with pytest.raises(ApiError):
        await _passes(scope)


@pytest.mark.parametrize(
    "path", ["/", "/metrics", "/openapi.json", "/ready", "/nowhere", "/health/", "//health", "/Health"]
)
async def test_every_path_but_health_wants_the_key(path):
    with pytest.raises(ApiError):
        await _passes(_scope(path))


async def test_health_is_open_and_every_key_counts():
    assert await _passes(_scope("/health"))
    assert await _passes(_scope(authorization="Bearer b"), keys=("a", "b"))
    assert await _passes(_scope(), keys=())


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1:1", "[::1]:8000", "[::1]"])
async def test_named_hosts_pass(host):
    assert await _passes(_scope(host=host), keys=(), hosts=("localhost", "127.0.0.1", "[::1]"))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "",
        "127.0.0.1.evil.example:80",
        "localhost:80@evil.example",
        "localhost:",
        "localhost:80:80",
        "localhost/x",
        "localhost:80#",
        "[::1]x",
    ],
)
async def test_other_hosts_are_refused_even_on_health(host):
    with pytest.raises(ApiError) as refused:
        await _passes(_scope("/health", host=host), keys=(), hosts=("localhost", "127.0.0.1"))
    assert refused.value.status == 421


def test_bearer_token_of_nothing_is_nothing():
    assert bearer_token(b"") == b""


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": ("",)},
        {"keys": ("a b",)},
        {"keys": ("schlüssel",)},
        {"cors_origins": ("*",)},
        {"cors_origins": ("example.org",)},
        {"cors_origins": ("https://example.org/",)},
        {"max_queue": -1},
        {"max_body_bytes": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        GatewaySettings(**wrong)


def test_settings_do_not_print_their_keys():
    assert "sekrit" not in repr(GatewaySettings(keys=("sekrit",)))


@pytest.mark.parametrize("given", ["abc-123", "a" * 128, "0a:b/c=d@e+f._-"])
def test_a_sane_request_id_is_kept(given):
    assert RequestRecord.begin(_scope(x_request_id=given), "/x").request_id == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\r\nset-cookie: x", "ünïcode", '"', "<script>"])
def test_any_other_is_replaced(given):
    ids = {RequestRecord.begin(_scope(x_request_id=given), "/x").request_id for _ in range(3)}
    assert given not in ids and len(ids) == 3


def _receive(*messages):
    left = list(messages)

    async def receive():
        if not left:
            await asyncio.sleep(3600)
        return left.pop(0)

    return receive


def _part(body, more):
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_is_joined():
    receive = _receive(_part(b"ab", True), _part(b"", True), _part(b"cd", False))
    assert await read_body(_scope(), receive, 4, 1) == b"abcd"


async def test_a_declared_length_is_refused_before_a_byte_is_read():
    with pytest.raises(ApiError) as refused:
        await read_body(_scope(content_length="5"), _receive(), 4, 1)
    assert refused.value.status == 413 and "4 B" in refused.value.message


async def test_an_undeclared_length_is_counted():
    with pytest.raises(ApiError) as refused:
        await read_body(_scope(), _receive(_part(b"abc", True), _part(b"de", True)), 4, 1)
    assert refused.value.status == 413


async def test_a_body_that_stops_arriving_is_given_up():
    with pytest.raises(ApiError) as refused:
        await read_body(_scope(), _receive(_part(b"abc", True)), 4, 0.01)
    assert refused.value.status == 408


async def test_a_client_that_leaves_within_its_body():
    with pytest.raises(ClientGone):
        await read_body(_scope(), _receive(_part(b"abc", True), {"type": "http.disconnect"}), 4, 1)


@pytest.mark.parametrize("value", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_json_is_json(value):
    BodyHead.of(_scope(content_type=value)).require_json()


@pytest.mark.parametrize("value", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_what_a_web_page_may_post_unasked_is_415(value):
    with pytest.raises(ApiError) as refused:
        BodyHead.of(_scope(content_type=value)).require_json()
    assert refused.value.status == 415


async def test_only_what_is_read_as_json_must_be_declared_so():
    bodies, scope = Bodies(GatewaySettings()), _scope(content_type="text/plain")
    async with bodies.read({**scope, "client": None}, _receive(_part(b"{}", False))) as body:
        assert body.data == b"{}"
    with pytest.raises(ApiError) as refused:
        async with bodies.read(scope, _receive(_part(b"{}", False)), is_json=True):
            pass
    assert refused.value.status == 415
