"""`qserve up --takeover` under load: no connection is refused, no request fails, no worker is started again."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from qserve.runs import RunStore
from tests.processes import is_running, words
from tests.tiny.serving.served import Service, until

ECHO = Path(__file__).parents[2] / "echo_engine"
BOTH = ("--reward", "demo", "--dtype", "float32")
SHORT = {"model": "demo", "prompt": "What is 12+30?", "max_tokens": 8, "temperature": 0}
LONG = {**SHORT, "max_tokens": 80, "ignore_eos": True, "stream": True}
SCORED = {"model": "demo-reward", "prompt": "What is 12+30?", "responses": ["42", "43"]}
# Takes port and workers, and then hangs: as one that is killed before the old service was told to leave.
HANGS = (
    "import time; from qserve.supervisor.takeover.adopting import Adopting\n"
    "async def hang(self): print('has taken', flush=True); time.sleep(600)\n"
    "Adopting.adopt = hang\n"
    "from qserve.cli.main import cli; cli(prog_name='qserve')"
)

Begin = Callable[..., Service]


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a name so short that what services keep for themselves is below it."""
    with tempfile.TemporaryDirectory(prefix="qserve-t-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def begin(folder: Path) -> Iterator[Begin]:
    """`begin("--flag", …)`: services one after the other, with one state folder and one temporary folder."""
    services: list[Service] = []

    def one(*arguments: str, **named: Any) -> Service:
        service = Service(("--model", "demo", "--no-ui", *arguments), folder, **named)
        services.append(service)
        return service

    yield one
    for service in reversed(services):  # the last one has the workers
        service.process.terminate()
        service.process.wait(60)
        service._reader.join(60)


def port_of(service: Service) -> str:
    return service.url.rpartition(":")[2]


def worker_pids(folder: Path) -> list[int]:
    """Processes of workers whose key lies below `folder`, whoever started them."""
    return [
        one.pid
        for one in psutil.process_iter()
        if any(
            str(folder) in word and word.endswith((f"{os.sep}chat.json", f"{os.sep}reward.json")) for word in words(one)
        )
    ]


def gone(pid: int) -> bool:
    return not is_running(pid)


@dataclass
class Load:
    """Clients that ask without a pause: on kept connections, on new ones, by streams, and for rewards."""

    url: str
    answers: dict[str, set[str]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    streams: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def running(self, *, has_reward: bool) -> Iterator[None]:
        self._is_over = threading.Event()
        asked = {"kept": self._kept, "kept too": self._kept, "new": self._new, "stream": self._stream}
        asked |= {"stream too": self._stream} | ({"reward": self._reward} if has_reward else {})
        threads = [threading.Thread(target=self._repeat, args=one) for one in asked.items()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join(120)

    def once(self, *, has_reward: bool) -> dict[str, set[str]]:
        """The answers of one round."""
        with httpx.Client(timeout=60) as client:
            short, long = self._kept(client), self._stream(client)
            scores = {"reward": {self._reward(client)}} if has_reward else {}
        self.streams.clear()
        same = {"kept": {short}, "kept too": {short}, "new": {short}, "stream": {long}, "stream too": {long}}
        return {**same, **scores}

    def _repeat(self, name: str, ask: Callable[[httpx.Client], str]) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._is_over.is_set():
                try:
                    self.answers.setdefault(name, set()).add(ask(client))
                    self.counts[name] = self.counts.get(name, 0) + 1
                except (httpx.HTTPError, KeyError) as error:
                    self.errors.append(f"{name}: {error!r}")

    def _kept(self, client: httpx.Client) -> str:
        return str(self._json(client.post(f"{self.url}/v1/completions", json=SHORT))["choices"][0]["text"])

    def _new(self, _: httpx.Client) -> str:
        with httpx.Client(timeout=60) as client:
            return self._kept(client)

    def _stream(self, client: httpx.Client) -> str:
        began_s = time.monotonic()
        with client.stream("POST", f"{self.url}/v1/completions", json=LONG) as response:
            response.raise_for_status()
            text = "".join(line for line in response.iter_lines() if '"text"' in line or "error" in line)
        self.streams.append((began_s, time.monotonic()))
        assert '"error"' not in text, text
        # All but the request's id and time.
        return "".join(piece.partition('"')[0] for piece in text.split('"text":"')[1:])

    def _reward(self, client: httpx.Client) -> str:
        return str(self._json(client.post(f"{self.url}/v1/reward", json=SCORED))["data"])

    @staticmethod
    def _json(response: httpx.Response) -> Any:
        response.raise_for_status()
        return response.json()


def test_no_request_is_lost_and_no_worker_is_started_again(begin: Begin, folder: Path) -> None:
    old = begin(*BOTH, "--gateway-processes", "2", "--drain-timeout", "100").until_ready()
    load, before = Load(old.url), worker_pids(folder)
    undisturbed = load.once(has_reward=True)
    assert len(before) == 2
    with load.running(has_reward=True):
        until(lambda: len(load.streams) > 1, 60, "no stream ends")
        new = begin(*BOTH, "--takeover", "--port", port_of(old)).until_ready()
        old.until_said("another service took over")
        left_s = time.monotonic()
        assert old.process.wait(120) == 0, old.output
        num_streams = len(load.streams)
        until(lambda: len(load.streams) > num_streams + 2 or bool(load.errors), 60, "no stream ends afterwards")
    assert not load.errors
    assert load.answers == undisturbed
    assert all(count > 3 for count in load.counts.values()), load.counts
    assert any(began < left_s < ended for began, ended in load.streams), "no stream ran across it"
    assert "every request was answered" in old.output
    assert worker_pids(folder) == before
    assert [one["num_restarts"] for one in new.get("/v1/qserve/report").json()["data"]] == [0, 0]
    took_over(old, new)
    watches_what_it_adopted(new, folder)


def took_over(old: Service, new: Service) -> None:
    """Each has a record of its own, and the new one's says from whom it took over."""
    store = RunStore.open(new.state / "qserve")
    later, earlier = store.runs()
    assert (earlier.exit_status, later.exit_status) == (0, None)
    (event,) = [one for one in store.events(later) if one.event == "took_over"]
    assert event.details == {"run": earlier.id, "pid": old.process.pid}
    assert [one.event for one in store.events(earlier) if not one.worker][-1] == "handed_over"
    assert {one.event for one in store.events(later) if one.worker == "chat"} >= {"adopted", "ready"}


def watches_what_it_adopted(new: Service, folder: Path) -> None:
    """A killed worker is started again; SIGTERM ends all; the log goes on."""
    chat = next(pid for pid in worker_pids(folder) if "chat.json" in " ".join(words(psutil.Process(pid))))
    os.kill(chat, signal.SIGKILL)
    new.until_said("ready again")
    after = worker_pids(folder)
    assert chat not in after and len(after) == 2
    assert new.post("/v1/completions", **SHORT).status_code == 200
    assert new.end_as_told() == 0
    assert all(map(gone, after))


def echo(begin: Begin, *arguments: str, **named: Any) -> Service:
    """What a takeover does is the same with every engine, and this one starts in a second."""
    path = os.pathsep.join(filter(None, (str(ECHO), os.environ.get("PYTHONPATH"))))
    return begin("--engine", "echo", *arguments, environment={"PYTHONPATH": path}, **named)


def test_one_that_is_killed_before_the_old_one_left_changes_nothing(begin: Begin, folder: Path) -> None:
    old = echo(begin).until_ready()
    load, (worker,) = Load(old.url), worker_pids(folder)
    undisturbed = load.once(has_reward=False)
    with load.running(has_reward=False):
        new = echo(begin, "--takeover", "--port", port_of(old), program=(sys.executable, "-c", HANGS))
        new.until_said("has taken")
        new.process.kill()
        old.until_said("this service goes on")
        num_streams = len(load.streams)
        until(lambda: len(load.streams) > num_streams + 2 or bool(load.errors), 60, "no stream ends afterwards")
    assert not load.errors and load.answers == undisturbed
    assert worker_pids(folder) == [worker]
    os.kill(worker, signal.SIGKILL)
    old.until_said("ready again")
    old.process.terminate()
    assert old.process.wait(60) == 0, old.output  # what the killed one left behind the next start removes


def test_what_can_not_be_taken_over_is_refused_with_what_would_work(begin: Begin, folder: Path) -> None:
    def refused(service: Service, status: int) -> str:
        assert service.process.wait(120) == status, service.output
        service._reader.join(60)
        return service.output

    old = echo(begin, "--max-model-len", "256").until_ready()
    port = port_of(old)
    other = refused(echo(begin, "--takeover", "--port", port, "--max-model-len", "128"), 2)
    assert "--max-model-len: 256 there, 128 here" in other and "a restart is needed" in other
    assert "give the same" in refused(
        echo(begin, "--takeover", "--port", port, "--max-model-len", "256", "--host", "127.0.0.2"), 2
    )
    assert "--takeover takes its port" in refused(echo(begin, "--port", port, "--max-model-len", "256"), 4)
    assert "no service of yours listens on port 1" in refused(echo(begin, "--takeover", "--port", "1"), 2)
    assert old.post("/v1/completions", **SHORT).status_code == 200


def test_workers_end_with_the_service_that_adopted_them_however_it_ends(begin: Begin, folder: Path) -> None:
    old = echo(begin, "--replicas", "2").until_ready()
    workers = worker_pids(folder / "tmp") or [one.pid for one in psutil.Process(old.process.pid).children()]
    new = echo(begin, "--replicas", "2", "--takeover", "--port", port_of(old), "--gateway-processes", "2").until_ready()
    assert old.process.wait(60) == 0
    assert not any(map(gone, workers))
    new.process.kill()
    until(lambda: all(map(gone, workers)), 10, "workers outlive their service")
