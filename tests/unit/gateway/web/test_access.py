"""Access to the web UI: whose request it is, who passes, what is slowed and what is refused."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.gateway.app import build_gateway
from qserve.gateway.auth import GuardedKeys
from qserve.gateway.keys.editing import add_key
from qserve.gateway.keys.entries import KeyEntry
from qserve.gateway.middleware import RequestContext
from qserve.gateway.run_history import RunHistory
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.telemetry.metrics import GatewayMetrics
from qserve.gateway.web import BrowserAccess, UiEndpoint
from qserve.gateway.web.access import VISITOR, key_of_form
from qserve.gateway.web.origin import check_origin
from qserve.gateway.web.routes import UI_ROUTES, ui_route
from qserve.gateway.web.session import SESSION_S, Sessions
from qserve.gateway.web.texts import TEXTS, language
from qserve.wire.errors import ApiError
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

PAGE = (Path(__file__).parents[4] / "docs" / "api.md").read_text()
KEY = "sk-access-19f2"


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Answer:
    def __init__(self, messages) -> None:
        self.status = messages[0]["status"]
        self.pairs = messages[0]["headers"]
        self.headers = {name.decode(): value.decode() for name, value in self.pairs}
        self.text = b"".join(one.get("body", b"") for one in messages[1:]).decode()


class Client:
    """A browser of sorts before a gateway: it keeps its cookie, and says where its requests come from."""

    def __init__(self, keys=(KEY,), state=WorkerState.STARTING, install="", **settings) -> None:
        worker = WorkerStatus(WorkerFacts("chat", ("m",), UnixAddress(Path("/nowhere")), "k", 1, 1))
        self.ui = UiEndpoint(WorkerStatus(replace(worker.facts, name="ui"), state), "internal", install)
        self.app = build_gateway(GatewaySettings(keys=keys, **settings), [worker], ui=self.ui)
        self.cookie = ""

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
        given = {"host": "h:1", "accept": "text/html", "cookie": self.cookie, **headers}
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items() if value]
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": pairs,
            "client": ("10.0.0.9", 4),
            "server": ("h", 8000),
            "scheme": "http",
        }
        messages = []

        async def receive():
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message):
            messages.append(message)

        await self.app(scope, receive, send)
        answer = Answer(messages)
        if "set-cookie" in answer.headers:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
        return answer

    async def sign_in(self, key: str = KEY, **headers: str) -> Answer:
        return await self.ask("POST", "/sign-in", f"key={key}".encode(), **{"origin": "http://h:1", **headers})


async def test_only_browsers_get_the_page_and_the_api_keeps_its_routes():
    client = Client()
    page = await client.ask("GET", "/")
    assert (page.status, page.headers["content-type"]) == (401, "text/html; charset=utf-8")
    for path, accept in (("/", "*/*"), ("/v1/models", "text/html"), ("/gradio_api/info", "text/html")):
        refused = await client.ask("GET", path, accept=accept)
        assert (refused.status, refused.headers["content-type"]) == (401, "application/json"), path
    assert (await client.ask("GET", "/health")).status == 200


async def test_the_right_key_gives_a_cookie_that_is_no_key():
    client = Client()
    answer = await client.sign_in()
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SESSION_S}"} <= set(cookie.split("; "))
    assert "Secure" not in cookie and KEY not in cookie
    assert "starting" in (await client.ask("GET", "/")).text
    assert client.ui.wanted.is_set()


@pytest.mark.parametrize("headers", [{"x_forwarded_proto": "https"}, {"origin": "https://h:1"}])
async def test_behind_tls_the_cookie_is_secure(headers):
    assert "; Secure" in (await Client().sign_in(**headers)).headers["set-cookie"]


async def test_a_wrong_key_gives_nothing_and_stands_nowhere():
    answer = await Client().sign_in("sk-wrong<b>")
    assert answer.status == 401
    assert "set-cookie" not in answer.headers
    assert "sk-wrong" not in answer.text


async def test_the_internal_key_opens_the_api_but_no_page():
    client = Client()
    assert (await client.sign_in("internal")).status == 401
    listed = await client.ask("GET", "/v1/models", authorization="Bearer internal")
    assert listed.status == 200


async def test_guesses_by_the_form_and_by_the_api_are_counted_together_and_lock_nobody_out(monkeypatch):
    """The address may be a load balancer's: everybody's."""
    pauses = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("qserve.gateway.auth.asyncio.sleep", sleep)
    client = Client()
    for number in range(6):
        assert (await client.sign_in(f"guess-{number}")).status == 401
        assert (await client.ask("GET", "/v1/models", authorization=f"Bearer guess-{number}")).status == 401
    assert len(pauses) <= 2, "ten are free"
    pauses.clear()
    assert (await client.sign_in()).status == 303, "the right key is slowed, and taken"
    assert pauses == [1.0]


def test_sessions_end_by_time_and_by_hand():
    clock = Clock()
    sessions = Sessions(clock)
    one, two = sessions.begin(), sessions.begin()
    assert sessions.visitor(one) not in (None, sessions.visitor(two))
    assert one not in repr(vars(sessions))
    sessions.end(one)
    assert sessions.visitor(one) is None and sessions.visitor(two)
    clock.now_s += SESSION_S
    assert sessions.visitor(two) is None
    assert sessions.visitor("made-up") is None


async def test_without_keys_a_visit_is_a_session_and_other_hosts_are_refused():
    client = Client(keys=(), allowed_hosts=("h",))
    assert (await client.ask("GET", "/assets/x.js")).status == 401
    assert "starting" in (await client.ask("GET", "/")).text
    assert client.cookie
    assert (await client.ask("GET", "/", host="evil.example")).status == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://h:2"},
        {"origin": "null"},
        {"origin": "http://h:1", "sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {},
    ],
)
async def test_a_post_that_may_be_forged_is_refused(headers):
    client = Client(state=WorkerState.READY)
    await client.sign_in()
    for path in ("/gradio_api/queue/join", "/sign-out"):
        answer = await client.ask("POST", path, b"{}", **headers)
        assert (answer.status, "cross_site" in answer.text) == (403, True), path
    # A proxy may have put another Host in its place.
    behind = {"origin": "https://qserve.example", "sec_fetch_site": "same-origin"}
    assert (await client.ask("POST", "/gradio_api/queue/join", b"{}", **behind)).status == 503
    assert (await client.ask("POST", "/sign-out", origin="http://h:1")).status == 303


def test_a_get_may_be_a_link_and_no_more():
    def scope(**headers):
        pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        return {"method": "GET", "headers": pairs}

    check_origin(
        scope(sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"), has_session=True
    )
    for dest in ("image", "script", "iframe", "empty"):
        with pytest.raises(ApiError):
            check_origin(
                scope(sec_fetch_site="cross-site", sec_fetch_mode="no-cors", sec_fetch_dest=dest), has_session=True
            )


async def test_a_link_from_elsewhere_is_asked_again_from_here():
    answer = await Client().ask(
        "GET", "/", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document"
    )
    assert '<meta http-equiv="refresh" content="0;url=/">' in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (WorkerState.RESTARTING, "restarting"),
        (WorkerState.FAILED, "could not be started"),
        (WorkerState.DRAINING, "is stopping"),
    ],
)
async def test_while_it_is_away_a_page_says_so_and_the_rest_is_503(state, said):
    client = Client(state=state)
    client.ui.worker.detail = "killed by <SIGKILL>"
    await client.sign_in()
    page = await client.ask("GET", "/")
    # What is on its way is a page like any other: an error would stand in the browser's console.
    coming = state in (WorkerState.STARTING, WorkerState.RESTARTING)
    assert page.status == (200 if coming else 503) and said in page.text
    assert "<SIGKILL>" not in page.text
    assert (await client.ask("GET", "/theme.css")).status == 503


async def test_without_gradio_the_page_names_the_command():
    client = Client(install='pip install "gradio>=6.31"')
    await client.sign_in()
    page = await client.ask("GET", "/")
    assert page.status == 501 and "pip install &quot;gradio&gt;=6.31&quot;" in page.text
    assert not client.ui.wanted.is_set()


async def test_every_page_binds_the_browser():
    client = Client()
    for page in (await client.ask("GET", "/"), await client.sign_in(), await client.ask("GET", "/")):
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
    hashed = re.search(r"<style>(.*?)</style>", (await Client().ask("GET", "/")).text, re.DOTALL)
    assert hashed and "script" not in hashed[1]


@pytest.mark.parametrize(
    ("asked", "spoken"),
    [("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en,zh;q=0.5", "en"), ("fr, zh;q=0.1", "zh"), ("", "en"), ("zh;q=x", "en")],
)
def test_the_language_is_the_browsers(asked, spoken):
    assert language({"headers": [(b"accept-language", asked.encode())]}) == spoken


def test_both_languages_say_everything():
    assert TEXTS["en"].keys() == TEXTS["zh"].keys()
    for name, text in TEXTS["en"].items():
        assert set(re.findall(r"{\w+}", text)) == set(re.findall(r"{\w+}", TEXTS["zh"][name]))


@pytest.mark.parametrize(
    ("body", "key"),
    [(b"key=a%2Bb+", b"a+b"), (b"key=%E5%AF%86", "密".encode()), (b"other=1", b""), (b"\xff\xfe", b""), (b"", b"")],
)
def test_the_forms_key(body, key):
    assert key_of_form(body) == key


def test_no_route_of_the_ui_is_one_of_the_apis():
    from qserve.engines.vllm.wire.closed import CLOSED
    from qserve.gateway.routes import ROUTES

    taken = {(route.method, route.path) for route in ROUTES}
    assert not taken & {(route.method, route.path) for route in UI_ROUTES}
    for method, path in [*taken, *(("GET", path) for path in CLOSED)]:
        assert ui_route(method, path) is None, path


def test_the_page_of_the_api_lists_what_a_browser_may_ask():
    section = PAGE[PAGE.index("## The web UI") :]
    told = set(re.findall(r"^\| (\w+) \| `(/\S*)` \|", section, re.MULTILINE))
    assert told == {(route.method, route.path) for route in UI_ROUTES} | {("POST", "/sign-in"), ("POST", "/sign-out")}


@pytest.mark.parametrize("path", ["/assets/" + "a" * 5000, "/assets/" + "a" * 300, "/static/" + "a/" * 1000])
async def test_a_path_that_no_file_can_have_does_not_reach_the_ui(path):
    client = Client()
    await client.sign_in()
    assert (await client.ask("GET", path)).status == 404


async def test_the_ui_s_process_hears_of_a_sign_out():
    asked = []

    async def ui(scope, receive, send):
        asked.append((scope["method"], scope["path"], dict(scope["headers"])[VISITOR].decode()))
        raise ApiError(503, "it does not run", "ui_gone")

    sessions = Sessions()
    token = sessions.begin()
    visitor = sessions.visitor(token)
    settings = GatewaySettings(keys=(KEY,))
    access = BrowserAccess(ui, ui, settings, GuardedKeys(settings.keys), sessions)
    app = RequestContext(access, GatewayMetrics(), None, RunHistory())
    sent = []
    headers = [(b"host", b"h:1"), (b"origin", b"http://h:1"), (b"cookie", f"qserve-8000={token}".encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/sign-out",
        "raw_path": b"/sign-out",
        "query_string": b"",
        "headers": headers,
        "client": ("10.0.0.9", 4),
        "server": ("h", 8000),
        "scheme": "http",
    }

    async def send(message):
        sent.append(message)

    await app(scope, None, send)
    assert asked == [("POST", "/sign-out", visitor)] and sent[0]["status"] == 303
    assert sessions.visitor(token) is None


@pytest.mark.parametrize(
    ("limits", "status"),
    [({}, 303), ({"priority": "high"}, 401), ({"tokens_per_day": 5}, 401), ({"expires": dt.date(2026, 1, 1)}, 401)],
)
async def test_a_key_with_a_name_opens_the_pages_only_if_nothing_bounds_it(tmp_path, limits, status):
    """What pages ask counts for no key."""
    sha256 = hashlib.sha256(b"sk-alice").hexdigest()
    add_key(tmp_path / "keys.yaml", KeyEntry("alice", sha256, **limits))
    client = Client(keys=(), key_file=str(tmp_path / "keys.yaml"))
    assert (await client.ask("GET", "/")).status == 401, "there are keys"
    answer = await client.sign_in("sk-alice")
    assert answer.status == status
    if status == 401:
        word = "wrong" if "expires" in limits else "bounded"
        assert TEXTS["en"][word] in answer.text
    assert TEXTS["en"]["wrong"] in (await client.sign_in("sk-mallory")).text
