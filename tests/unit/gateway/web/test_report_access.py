"""A browser that has signed in sees /report; one that has not sees the form, and another site's page sees nothing."""

from __future__ import annotations

import pytest

from qserve.gateway.auth import SIGNED_IN, GuardedKeys, header
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.web import BrowserAccess
from qserve.gateway.web.session import cookie_name
from qserve.wire.errors import ApiError

BROWSER = ((b"accept", b"text/html,*/*"), (b"host", b"x:1"))


async def _ask(access, *headers, path="/report", method="GET"):
    """Status and, where the API was asked, the key that it was shown, or that a session stands for one."""
    scope = {"type": "http", "method": method, "path": path, "headers": [*BROWSER, *headers], "scheme": "http"}
    sent = []

    async def send(message):
        sent.append(message)

    await access(scope, None, send)
    return sent[0]["status"], sent[0].get("key")


@pytest.fixture
def access():
    async def api(scope, receive, send):
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "key": scope.get(SIGNED_IN) or header(scope, b"authorization"),
            }
        )

    settings = GatewaySettings(keys=("sk-one", "sk-two"))
    return BrowserAccess(api, api, settings, GuardedKeys(settings.keys))


def _cookie(access):
    return b"cookie", f"{cookie_name({'scheme': 'http', 'headers': []})}={access._sessions.begin()}".encode()


@pytest.mark.parametrize("path", ["/report", "/report/20261121"])
async def test_a_session_stands_for_the_key(access, path):
    assert await _ask(access, _cookie(access), path=path) == (200, True)


async def test_without_a_session_there_is_the_form_and_nothing_else(access):
    assert await _ask(access) == (401, None)
    assert await _ask(access, (b"cookie", b"qserve=nonsense")) == (401, None)


async def test_a_link_from_elsewhere_is_followed_and_a_frame_is_not(access):
    elsewhere = (b"sec-fetch-site", b"cross-site")
    link = (elsewhere, (b"sec-fetch-mode", b"navigate"), (b"sec-fetch-dest", b"document"))
    assert await _ask(access, _cookie(access), *link) == (200, True)
    with pytest.raises(ApiError) as refused:
        await _ask(access, _cookie(access), elsewhere, (b"sec-fetch-dest", b"iframe"))
    assert refused.value.status == 403


async def test_a_session_opens_no_other_route_of_the_api(access):
    for path in ("/reports", "/v1/qserve/runs", "/metrics"):
        assert await _ask(access, _cookie(access), path=path) == (200, b"")
    assert await _ask(access, _cookie(access), method="POST") == (200, b"")


async def test_programs_bring_their_own_key(access):
    assert await _ask(access, (b"authorization", b"Bearer sk-wrong")) == (200, b"Bearer sk-wrong")
