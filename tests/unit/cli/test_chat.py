"""`qserve chat`: conversations, commands with a slash, and what is told when a service refuses or goes away."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from qserve.cli.chat import session as session_module
from qserve.cli.chat.command import command
from qserve.cli.chat.conversation import SETTINGS, Conversation
from qserve.cli.chat.find import Partner, find_partner
from qserve.cli.chat.run import command as run
from qserve.cli.chat.screen import AnswerOnScreen
from qserve.cli.chat.session import Session
from qserve.cli.chat.stream import Delta, NoAnswer, stream_answer
from qserve.errors import UsageError
from qserve.evaluation.server import NoServer, models_of
from qserve.wire.reward.native import RewardRequest
from tests.terminal import Terminal

USAGE = {"prompt_tokens": 5, "completion_tokens": 3}
MODELS = [{"id": "demo", "kind": "chat"}, {"id": "judge", "kind": "reward"}]


class _Service(BaseHTTPRequestHandler):
    """As much of a service as a chat asks for; `answers` are the lines of the next streams."""

    protocol_version = "HTTP/1.1"  # a connection is kept, so that only a client that leaves ends it

    def do_GET(self) -> None:
        self._json(200 if self._has_key() else 401, {"data": self.server.models})  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append((self.path, body))  # type: ignore[attr-defined]
        if not self._has_key():
            self._json(401, {"error": {"message": "no key"}})
        elif self.path == "/v1/reward":
            RewardRequest.model_validate(body)
            self._json(200, {"data": [{"index": 0, "reward": 1.25}]})
        elif body.get("temperature") == 9:
            self._json(400, {"error": {"message": "temperature: 9 is more than 2"}})
        else:
            self._stream()

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in self.server.answers.pop(0):  # type: ignore[attr-defined]
            if event == "wait":
                self._wait_until_left()
            if event in ("wait", "break"):
                self.close_connection = True
                return
            data = event if isinstance(event, str) else json.dumps(event)
            self._chunk(f"data: {data}\n\n".encode())
        self._chunk(b"")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _wait_until_left(self) -> None:
        self.connection.settimeout(30)
        assert self.connection.recv(1) == b""
        self.server.left.set()  # type: ignore[attr-defined]

    def _json(self, status: int, document: Any) -> None:
        text = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _has_key(self) -> bool:
        return self.headers["authorization"] in ("Bearer key", None) and (
            self.headers["authorization"] is not None or not self.server.wants_key  # type: ignore[attr-defined]
        )

    def log_message(self, *_: object) -> None:
        return


def delta(text: str = "", thought: str = "") -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text, "reasoning_content": thought}}]}


ANSWER = [delta(thought="Hm. "), delta("4"), delta("2"), {"choices": [], "usage": USAGE}, "[DONE]"]


@pytest.fixture
def service() -> Iterator[Any]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Service)
    server.daemon_threads = True
    named: Any = server
    named.models, named.answers, named.bodies, named.wants_key, named.left = (
        MODELS,
        [ANSWER],
        [],
        False,
        threading.Event(),
    )
    named.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield named
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines of ours, in place of standard error."""
    lines: list[str] = []
    monkeypatch.setattr(session_module, "note", lines.append)
    return lines


def talk(service: Any, monkeypatch: pytest.MonkeyPatch, *messages: str | Callable[[], Any]) -> Session:
    """A chat in which the user says these; an exception's class, or what raises one, is what reading a line raises."""
    waiting = list(messages)

    def read() -> str:
        message = waiting.pop(0) if waiting else EOFError
        if isinstance(message, str):
            return message
        raise message()

    monkeypatch.setattr(session_module, "read_message", read)
    session = Session(Partner(service.url, "", "demo", "judge"), Conversation("demo"))
    session.talk()
    return session


def test_an_answer_is_streamed_and_becomes_part_of_the_conversation(
    service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    session = talk(service, monkeypatch, "/verbose", "What is 12+30?", KeyboardInterrupt)
    assert session.conversation.messages == [
        {"role": "user", "content": "What is 12+30?"},
        {"role": "assistant", "content": "42"},
    ]
    assert capsys.readouterr().out == "42\n\n\n", "no thought where standard output is no terminal"
    assert "reward 1.250 by judge" in said
    assert any("3 in the answer" in line and "tokens/s" in line for line in said)
    assert "/bye or Ctrl-D leaves the chat" in said


def test_a_request_holds_what_was_set(service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    talk(
        service,
        monkeypatch,
        "/system Be brief.",
        "/set temperature 0.5",
        "/set think off",
        "/set seed 3",
        "/set seed",
        "/reward",
        "Hello",
        "/bye",
    )
    ((path, body),) = service.bodies
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    assert (body["temperature"], body["chat_template_kwargs"]) == (0.5, {"enable_thinking": False})
    assert "seed" not in body


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("/nope", "there is no /nope; /help lists all"),
        ("/clera", "did you mean /clear?"),
        ("/set heat 1", "/set has no parameter heat; it takes temperature"),
        ("/set temperature hot", "write a number"),
        ("/set seed 1.5", "write a whole number"),
        ("/set think maybe", "write on or off"),
        ("/save", "/save chat.json"),
        ("/load nowhere.json", "can't be read"),
    ],
)
def test_a_slip_in_a_command_is_told_and_the_chat_stays(
    typed: str, told: str, service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    talk(service, monkeypatch, typed)
    assert any(told in line for line in said), said


@pytest.mark.parametrize("width", [80])
def test_help_names_every_command_in_short_lines(
    width: int, service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    session = talk(service, monkeypatch, "/help", "/set")
    assert all(any(line.startswith(f"/{name}") for line in said) for name in session._commands)
    assert all(any(line.startswith(name) for line in said) for name in SETTINGS)
    assert max(map(len, said)) <= width


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (["break"], "broke off"),
        ([delta("4"), "break"], "broke off"),
        ([{"error": {"message": "the worker ended"}}], "the worker ended"),
        (["[DONE]"], "the answer is empty"),
        ([{"error": "the worker ended"}], "the worker ended"),
        ([{"error": {"code": 5}}], '{"error": {"code": 5}}'),
        ([{"error": None}, "[DONE]"], "the answer is empty"),
        ([delta("4"), '{"choices": [{"del'], "an event is cut off or not JSON"),
        (["<html>"], "cut off or not JSON"),
        (["[" * 100_000], "cut off or not JSON"),
        *(
            (event, "not one of OpenAI's chat completions")
            for event in [
                ["7"],
                ["[]"],
                ["null"],
                [{"choices": 7}],
                [{"choices": {"0": 1}}],
                [{"choices": [7]}],
                [{"choices": [{"delta": "4"}]}],
                [{"choices": [{"delta": {"content": 42}}]}],
                [delta("4") | {"usage": "none"}],
            ]
        ),
    ],
)
def test_a_message_without_an_answer_is_kept_and_sent_again(
    answer: list[Any], why: str, service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    service.answers = [answer, ANSWER]
    session = talk(service, monkeypatch, "What is 12+30?", "")
    assert any(why in line and "press Enter to send it again" in line for line in said), said
    assert [one["content"] for one in session.conversation.messages] == ["What is 12+30?", "42"]
    assert [body["messages"] for path, body in service.bodies if "chat" in path] == [
        [{"role": "user", "content": "What is 12+30?"}]
    ] * 2


def test_ctrl_c_during_a_reward_ends_the_reward_alone(
    service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session_module, "post_json", stopped)
    service.answers = [ANSWER, ANSWER]
    session = talk(service, monkeypatch, "One", "Two")
    assert said == ["no reward: stopped"] * 2
    assert [one["content"] for one in session.conversation.messages] == ["One", "42", "Two", "42"]


def test_a_message_in_another_encoding_is_told_and_the_chat_stays(
    service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    session = talk(service, monkeypatch, "One", lambda: b"\xff".decode())
    assert any("the message is not valid" in line for line in said)
    assert len(session.conversation.messages) == 2


def test_a_refusal_is_told_and_the_message_kept(service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> None:
    session = talk(service, monkeypatch, "/set temperature 9", "Hello")
    assert any("answered 400: temperature: 9 is more than 2" in line for line in said)
    assert session.draft == "Hello" and not session.conversation.messages


def test_a_message_that_was_too_long_is_sent_again_after_clear(
    service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    refusal = [{"error": {"message": "longer than the context"}}]
    service.answers = [ANSWER, refusal, ANSWER]
    session = talk(service, monkeypatch, "One", "Two", "/clear", "")
    assert "the conversation is empty; Enter sends your last message again" in said
    assert [one["content"] for one in session.conversation.messages] == ["Two", "42"]


def test_a_service_that_went_down_is_told_and_the_message_kept(
    monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    class Nobody:
        url = "http://127.0.0.1:9"

    session = talk(Nobody(), monkeypatch, "Hello")
    assert any(line.startswith("no server answers at http://127.0.0.1:9") for line in said)
    assert session.draft == "Hello"


def test_ctrl_c_ends_the_request_on_the_server_and_keeps_what_came(service: Any, tmp_path: Path) -> None:
    service.answers = [[delta("4"), "wait"]]
    state = ("--state-dir", str(tmp_path))
    terminal = Terminal(sys.executable, "-m", "qserve", "chat", "--url", service.url, *state, QSERVE_API_KEY="")
    terminal.until(">>> ")
    terminal.type("Count.\n")
    terminal.until("Count.")
    terminal.until("4")
    terminal.type("\x03")
    assert service.left.wait(60), "the connection stayed open"
    terminal.until("stopped; the answer so far is part of the conversation")
    terminal.until(">>> ")
    terminal.type(f"/save {tmp_path / 'chat.json'}\n/bye\n")
    assert terminal.status() == 0
    assert json.loads((tmp_path / "chat.json").read_text())["messages"][-1] == {"role": "assistant", "content": "4"}


def test_a_conversation_is_saved_and_loaded(
    tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> None:
    file = tmp_path / "chat.json"
    first = talk(service, monkeypatch, "/system Be brief.", "/set top_k 5", "Hello", f"/save {file}", f"/save {file}")
    second = talk(service, monkeypatch, f"/load {file}")
    assert second.conversation == first.conversation
    file.write_text('{"mine": 1}')
    talk(service, monkeypatch, f"/save {file}", f"/load {file}")
    assert sum("is not a conversation written by /save" in line for line in said) == 2
    assert file.read_text() == '{"mine": 1}', "a file of somebody else's is not written over"


def called(*arguments: str, piped: str | bytes = "", key: str = "") -> Any:
    return CliRunner().invoke(command, arguments, input=piped, env={"QSERVE_API_KEY": key, "OPENAI_API_KEY": ""})


def test_a_pipe_gets_one_answer(service: Any) -> None:
    done = called("--url", service.url, "demo", "Summarize:", piped="a text\n")
    assert (done.exit_code, done.stdout) == (0, "42\n")
    assert service.bodies[0][1]["messages"] == [{"role": "user", "content": "Summarize:\n\na text"}]
    assert isinstance(called("--url", service.url).exception, UsageError)


def test_a_pipe_in_another_encoding_is_sent_as_far_as_it_is_read(service: Any) -> None:
    """Python reads standard input with errors="strict" in most locales."""
    assert called("--url", service.url, piped=b"caf\xe9\n").stdout == "42\n"
    assert service.bodies[0][1]["messages"] == [{"role": "user", "content": "caf\ufffd"}]


def test_a_thought_alone_is_no_answer(service: Any) -> None:
    service.answers = [[delta(thought="Hm. "), "[DONE]"]]
    failed = called("--url", service.url, "demo", "Hi").exception
    assert isinstance(failed, NoAnswer) and failed.exit_status == 1
    assert str(failed) == "the answer is empty; a thought may have used all of max_tokens"


def test_a_key_that_is_missing_is_named(service: Any) -> None:
    service.wants_key = True
    assert "needs a key: --api-key, or QSERVE_API_KEY" in str(called("--url", service.url, "demo", "Hi").exception)
    assert called("--url", service.url, "demo", "Hi", key="key").stdout == "42\n"
    with pytest.raises(NoAnswer, match="needs a key: --api-key"):
        next(stream_answer(service.url, "", {}))


@pytest.mark.parametrize("name", [None, "demo", "DEMO"])
def test_a_model_is_found_by_its_name(name: str | None, service: Any) -> None:
    assert find_partner(service.url, "", name, None) == Partner(service.url, "", "demo", "judge")


@pytest.mark.parametrize(
    ("name", "told"), [("dmeo", "did you mean demo?"), ("qwen3-8b", "`qserve run qwen3-8b` starts it")]
)
def test_a_model_that_is_not_served_is_told_with_what_would_work(name: str, told: str, service: Any) -> None:
    with pytest.raises(UsageError, match=f"serves demo and not {name}; {told}"):
        find_partner(service.url, "", name, None)


@pytest.mark.parametrize("models", [None, 7, "demo", [7], [["id", "demo"]], [{"name": "demo"}]])
def test_a_server_that_lists_no_models_is_told(models: Any, service: Any) -> None:
    service.models = models
    with pytest.raises(UsageError, match="is not an OpenAI server: its /v1/models is not a list of models"):
        find_partner(service.url, "", None, None)


def test_an_address_without_a_server_is_told_from_one_that_refuses(service: Any) -> None:
    service.wants_key = True
    with pytest.raises(UsageError, match="needs a key") as refused:
        models_of(service.url, "")
    assert not isinstance(refused.value, NoServer)
    with pytest.raises(NoServer, match="no server answers at"):
        models_of("http://127.0.0.1:9", "")


def test_without_a_service_the_commands_that_start_one_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setattr("qserve.cli.chat.find._DEFAULT_URL", f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(UsageError, match="no service runs here; `qserve run qwen3-8b` starts one for this chat"):
            find_partner(None, "", "qwen3-8b", tmp_path)


class _Started:
    def __init__(self, service: Any) -> None:
        self.url, self.api_key = service.url, "key"


def test_run_starts_what_no_service_has_and_passes_its_flags_on(
    tmp_path: Path, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[list[str]] = []

    @contextlib.contextmanager
    def started(arguments: list[str], *_: Any) -> Iterator[_Started]:
        given.append(arguments)
        yield _Started(service)

    monkeypatch.setattr("qserve.library.own_server.own_server", started)
    words = ["demo", "Hi", "--quant", "int8", "--max-model-len", "512", "--state-dir", str(tmp_path)]
    done = CliRunner().invoke(run, words, env={"QSERVE_API_KEY": ""})
    assert (done.exit_code, done.stdout) == (0, "42\n"), done.output
    assert given == [["--model", "demo", "--quant=int8", "--max-model-len=512", "--no-ui"]]


@pytest.mark.parametrize(("words", "told"), [([], "no model is named"), (["qwen3-33b"], "did you mean Qwen/Qwen3-32B")])
def test_run_tells_a_slip_before_anything_starts(words: list[str], told: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(run, [*words, "--state-dir", str(tmp_path)], env={"HF_HUB_OFFLINE": "1"})
    assert isinstance(done.exception, UsageError) and told in str(done.exception)


def shown_on_a_terminal(*pieces: Delta) -> str:
    screen = AnswerOnScreen()
    screen._is_terminal = True

    @click.command()
    def show() -> None:
        with screen:
            for piece in pieces:
                screen.show(piece)

    return CliRunner().invoke(show, color=True).stdout


def test_a_thought_is_dimmed_above_its_answer() -> None:
    shown = shown_on_a_terminal(Delta(thought="Hm."), Delta(thought=" 42"), Delta("\n\n4"), Delta("2"))
    assert shown == "\x1b[2mHm.\x1b[0m\x1b[2m 42\x1b[0m\n\n42\n"


def test_a_text_of_a_model_does_not_move_the_cursor() -> None:
    """An escape sequence in an answer is shown as a mark."""
    assert shown_on_a_terminal(Delta("a\x1b[2Jb\x9bc\td\n")) == "a�[2Jb�c\td\n"
