"""A download says how far it is, and why it can't be done: from a hub of our own, by the real client."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from qserve.hub.growth import Growth
from qserve.units import GIB, MIB

COMMIT, OLDER = "a" * 40, "b" * 40
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 16_384}  # 4 MiB
# Of a model, then of what can't be fetched: one import of the library for all.
PROGRAM = """
import json, sys
from qserve.core.checkpoint import Checkpoint
from qserve.errors import QserveError
from qserve.hub import download as module
from types import SimpleNamespace
from huggingface_hub import constants

for named in sys.argv[1:]:
    name, _, revision = named.partition("@")
    free = 5 if name == "me/larger" else 1 << 40
    module.shutil = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=free))
    if name == "me/unreachable":
        constants.ENDPOINT = "http://127.0.0.1:9"
    told = []
    try:
        found = module.download(Checkpoint(name, None, {}, None, revision=revision or None), told.append)
        end = {file.name: file.stat().st_size for file in found.folder.iterdir()}
        end["revision"] = [found.revision, found.folder.name]
    except QserveError as error:
        end = str(error)
    print(json.dumps([told, end]))
"""


class _Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if path.startswith(("/api/models/me/gated", "/me/gated")):
            self._send(403, b"{}", {"X-Error-Code": "GatedRepo"})
        elif "/revision/" in path:
            commit = {"main": COMMIT, "v1": OLDER, OLDER: OLDER}.get(path.rpartition("/")[2])
            if commit is None:
                self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            else:
                self._send(200, json.dumps({"id": "me/model", "sha": commit, "siblings": []}).encode())
        elif "/tree/" in path:
            files = [{"path": name, "size": len(data), "oid": _oid(data)} for name, data in FILES.items()]
            self._send(200, json.dumps([{"type": "file", **file} for file in files]).encode())
        else:
            data = FILES[path.rpartition("/")[2]]
            commit = OLDER if OLDER in path else COMMIT
            self._send(200, data, {"ETag": f'"{_oid(data)}"', "X-Repo-Commit": commit})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        lines = {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})}
        for name, value in lines.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def fetched(endpoint: str, cache: Path, *names: str) -> list[tuple[list[str], object]]:
    """What was told of each, and its end."""
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HUB_CACHE": str(cache)}
    environment = {key: value for key, value in environment.items() if key not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    command = [sys.executable, "-c", PROGRAM, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not done.returncode, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_a_model_comes_with_words_and_what_can_not_come_says_why(hub: str, tmp_path: Path) -> None:
    names = ("me/model", "me/model", "me/gated", "me/larger", "me/unreachable")
    first, again, gated, larger, unreachable = fetched(hub, tmp_path, *names)
    assert first[1] == {**{name: len(data) for name, data in FILES.items()}, "revision": [COMMIT, COMMIT]}
    assert first[0][0] == "0 B of 4 MiB"
    assert again == ([], first[1]), "all of it is there"
    assert "HF_TOKEN is needed" in str(gated[1])
    assert "me/larger needs 4 MiB more on disk" in str(larger[1]) and "HF_HOME=" in str(larger[1])
    assert "the weights of me/unreachable are not on this machine" in str(unreachable[1])
    assert "refused" in str(unreachable[1])


def test_a_revision_is_fetched_and_the_commit_that_it_is_told(hub: str, tmp_path: Path) -> None:
    branch, commit, main, none = fetched(hub, tmp_path, "me/model@v1", f"me/model@{OLDER}", "me/model", "me/model@v9")
    assert [dict(one[1])["revision"] for one in (branch, commit, main)] == [[OLDER] * 2, [OLDER] * 2, [COMMIT] * 2]
    assert "the weights of me/model at revision v9 are not on this machine" in str(none[1])
    assert "--revision takes a branch, a tag or a commit" in str(none[1])
    known = tmp_path / "models--me--model" / "refs"
    assert {file.name: file.read_text() for file in known.iterdir()} == {"v1": OLDER, "main": COMMIT}


def test_rate_and_time_left_are_of_the_last_seconds() -> None:
    growth = Growth(10 * GIB)
    assert growth.add(0.0, 0) == "0 B of 10.00 GiB"
    assert growth.add(1.0, 100 * MIB) == "100 MiB of 10.00 GiB · 100 MiB/s · 101 s left"
    for second in range(2, 40):
        told = growth.add(float(second), second * 50 * MIB)
    assert told == "1.90 GiB of 10.00 GiB · 50 MiB/s · 2.8 min left"
    assert growth.add(55.0, 39 * 50 * MIB).endswith(" · nothing arrived for 16 s")
    assert growth.add(56.0, 11 * GIB) == "10.00 GiB of 10.00 GiB"
