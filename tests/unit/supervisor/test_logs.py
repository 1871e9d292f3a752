"""`--log-format json`: one JSON object a line, whatever is said, with request ids and supervisor events."""

from __future__ import annotations

import json
import logging
import subprocess
import sys

import pytest

from qserve.errors import UsageError
from qserve.gateway.routes import ROUTES
from qserve.gateway.telemetry.record import POLLED, RequestRecord, log_request
from qserve.gateway.web.routes import UI_ROUTES
from qserve.hub.growth import Arrived
from qserve.supervisor.logs import JsonLines, LoggedScreen, logged_failures
from qserve.supervisor.record import RunRecord


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.setFormatter(JsonLines())
        self.lines = []

    def emit(self, record):
        self.lines.append(self.format(record))


@pytest.fixture
def said():
    """What is logged below `qserve`, parsed."""
    handler, logger = _Lines(), logging.getLogger("qserve")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in handler.lines if "\n" not in line]
    logger.removeHandler(handler)
    logger.setLevel(level)


def test_a_request_has_its_id_and_its_figures_beside_the_message(said):
    record = RequestRecord("req-1", "POST", "/v1/chat/completions", model="demo", status=200)
    log_request(record)
    (line,) = said()
    assert (line["level"], line["logger"]) == ("info", "qserve.access")
    assert (line["request_id"], line["route"], line["status"]) == ("req-1", "/v1/chat/completions", 200)
    assert line["time"].endswith("Z")


@pytest.mark.parametrize(
    ("route", "status", "code", "level"),
    [
        ("/metrics", 200, "", "debug"),
        ("/ready", 200, "", "debug"),
        ("/ready", 503, "worker_not_ready", "debug"),
        ("/ready", 500, "internal_error", "info"),
        ("/gradio_api/queue/data", 200, "", "debug"),
        ("/metrics", 401, "invalid_api_key", "info"),
        ("/metrics", 200, "worker_died", "info"),
        ("/v1/reward", 200, "", "info"),
        ("/", 200, "", "info"),
    ],
)
def test_polls_that_go_well_are_lines_for_debugging(said, route, status, code, level):
    log_request(RequestRecord("req-1", "GET", route, status=status, error_code=code))
    assert [line["level"] for line in said()] == [level]


def test_what_is_polled_is_a_route():
    assert {route.path for route in (*ROUTES, *UI_ROUTES)} >= POLLED


def test_what_happens_to_a_worker_is_a_line_with_all_figures(said, tmp_path):
    RunRecord(tmp_path).event("chat", "restart", reason="killed by SIGKILL", phases_s={"loading": 1.5})
    (line,) = said()
    assert (line["worker"], line["event"], line["reason"]) == ("chat", "restart", "killed by SIGKILL")
    assert line["phases_s"] == {"loading": 1.5}
    assert line["message"] == "chat worker: restart reason=killed by SIGKILL"


def test_the_screen_speaks_json_too(said):
    screen = LoggedScreen()
    screen.note("weights: bf16\nas stored")
    screen.phase("loading")
    screen.progress("fetching a model", Arrived(1, 2, ""))
    screen.ready([("API", "http://x"), ("Layers", "a"), ("", "b")])
    note, ready = said()
    assert note["message"] == "weights: bf16\nas stored"
    assert (ready["api"], ready["layers"]) == ("http://x", "a\nb")


def test_an_error_has_its_traceback_inside_the_line(said):
    try:
        raise ValueError('no "quotes" break it')
    except ValueError:
        logging.getLogger("qserve.supervisor").exception("it broke")
    (line,) = said()
    assert "ValueError" in line["error"]


def test_what_an_extra_brings_never_replaces_what_every_line_has(said):
    logging.getLogger("qserve.x").warning("mine", extra={"event": {"message": "theirs", "level": "theirs", "more": 1}})
    (line,) = said()
    assert (line["message"], line["level"], line["more"]) == ("mine", "warning", 1)


def test_the_end_of_the_command_is_told_as_a_line_and_by_its_status(said):
    with pytest.raises(SystemExit) as ended, logged_failures("json"):
        raise UsageError("the port is taken")
    assert ended.value.code == 2
    (line,) = said()
    assert (line["message"], line["exit_status"], line["level"]) == ("the port is taken", 2, "error")
    with pytest.raises(UsageError), logged_failures("text"):
        raise UsageError("the command line prints it")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--model", "demo", "--max-model-len", "999999999"], "demo has 2048 positions"),
        (["--model", "demo", "--max-model-len", "100", "--prompt-len", "200"], "--prompt-len 200"),
        ([], "no model is named; write it after the command, qserve up Qwen/Qwen3-8B"),
    ],
)
def test_every_line_of_a_real_command_is_json(flags, told, tmp_path):
    """It does not fit, or what is asked for contradicts itself, so nothing is started."""
    command = [sys.executable, "-m", "qserve", "up", *flags, "--log-format", "json"]
    done = subprocess.run(
        [*command, "--log-level", "info", "--state-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode in (2, 3)
    assert not done.stdout
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert lines[-1]["exit_status"] == done.returncode
    assert told in lines[-1]["message"]
