"""How a service ends: it drains, it is cut off, it is stopped while it starts; nothing of it stays.

That kill -9 leaves nothing either is looked at in test_run_record.py, where a service is killed anyway.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tiny.serving.served import Service, until

Start = Callable[..., Service]
ECHO = Path(__file__).parents[2] / "echo_engine"
WORDS, LONG = "one two three four " * 15, "one two three four " * 475


class Stream:
    """A streamed completion in a thread of its own; `events` grows while it runs."""

    def __init__(self, service: Service, **fields: Any) -> None:
        self.events: list[Any] = []
        self.error: httpx.HTTPError | None = None
        body = {"model": "demo", "prompt": "one two", "ignore_eos": True, "stream": True, "temperature": 0, **fields}
        self._thread = threading.Thread(target=self._read, args=(service.url, body))
        self._thread.start()
        until(lambda: bool(self.events), 30, "the stream did not begin")

    def _read(self, url: str, body: dict[str, Any]) -> None:
        try:
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
                for line in response.iter_lines():
                    if line and line != "data: [DONE]":
                        self.events.append(json.loads(line.removeprefix("data: ")))
        except httpx.HTTPError as error:
            self.error = error

    def rest(self) -> list[Any]:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the stream hangs"
        return self.events


def slow_echo(start: Start, *flags: str) -> Service:
    """What qserve does at the end is the same with every engine, and this one starts in a second."""
    return start("--engine", "echo", *flags, PYTHONPATH=str(ECHO), ECHO_PAUSE_S="0.05").until_ready()


def test_sigterm_lets_a_running_stream_finish_and_takes_nothing_new(start: Start) -> None:
    service = slow_echo(start)
    running = Stream(service, prompt=WORDS, max_tokens=600, stream_options={"include_usage": True})
    service.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in service.output, 60, "it does not say that it drains")
    refused = service.post("/v1/completions", prompt="a", max_tokens=2)
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "draining"
    assert "retry-after" in refused.headers
    assert service.get("/ready").status_code == 503
    assert service.get("/health").status_code == 200
    events = running.rest()
    assert events[-1]["usage"]["completion_tokens"] == len(WORDS.split())
    assert service.ended() == 0
    assert "every request was answered" in service.output


def test_the_drain_time_out_cuts_off_with_status_1(start: Start) -> None:
    service = slow_echo(start, "--drain-timeout", "0.5")
    running = Stream(service, prompt=LONG, max_tokens=1900)
    assert service.end(limit_s=20) == 1
    assert "1 request was cut off by the stop" in service.output
    last = running.rest()[-1]
    assert running.error or last["error"]["code"] == "worker_died"


def test_ctrl_c_twice_stops_at_once(start: Start) -> None:
    service = slow_echo(start, "--drain-timeout", "600")
    running = Stream(service, prompt=LONG, max_tokens=1900)
    service.process.send_signal(signal.SIGINT)
    until(lambda: "Ctrl-C again" in service.output, 60, "it does not say how to stop at once")
    assert service.end(signal.SIGINT, limit_s=60) == 1
    running.rest()


@pytest.mark.parametrize("when", [r"^", "importing torch", "loading weights"], ids=["at once", "imports", "weights"])
def test_sigterm_while_it_starts(start: Start, when: str) -> None:
    service = start()
    if when == "^":
        time.sleep(0.3)  # Python itself is starting, and has no handler yet
    else:
        service.until_said(when)
    status = service.end(limit_s=60)
    assert status in ((-signal.SIGTERM, 0) if when == "^" else (0,))
    assert "Traceback" not in service.output
