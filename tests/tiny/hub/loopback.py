"""A hub of our own on loopback, which the real client asks: ranges, and faults as a network and a proxy have them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["COMMIT", "OLDER", "Hub", "loopback_hub"]

COMMIT, OLDER = "a" * 40, "b" * 40
_COMMITS = {"main": COMMIT, COMMIT: COMMIT, "v1": OLDER, OLDER: OLDER}
_LARGE = 1 << 20  # kept as LFS, by SHA-256
_PIECE = 1 << 16


@dataclass
class Hub:
    """What it serves, the faults that are still to come, and what it has sent.

    Attributes:
        files: of every model but `others`, by name.
        others: of models by their ids.
        breaks: by file, after how many bytes of an answer the connection ends; one is taken for each answer.
        wrong: by file, how many answers begin with another byte.
        num_busy: so many answers are 429.
        digests: by file, what is said of it in place of its checksum.
        pause_s: before each 64 KiB.
        sent: bytes of each file that went out.
        asked: requests, by method and file.
    """

    files: Mapping[str, bytes]
    others: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    url: str = ""
    breaks: dict[str, list[int]] = field(default_factory=dict)
    wrong: Counter[str] = field(default_factory=Counter)
    num_busy: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    sent: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def files_at(self, path: str) -> Mapping[str, bytes]:
        """Of the model in an address's path."""
        return self.others.get("/".join(path.removeprefix("/api/models").split("/")[1:3]), self.files)

    def digest(self, name: str, data: bytes | None = None) -> str:
        """As the hub has it: SHA-256 of a large file, git's SHA-1 of a small one."""
        if name in self.digests:
            return self.digests[name]
        data = self.files[name] if data is None else data
        if len(data) >= _LARGE:
            return hashlib.sha256(data).hexdigest()
        return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if self._is_busy():
            self._send(429, b"{}", {"Retry-After": "0", "RateLimit": '"api";r=0;t=0'})
        elif "me/gated" in path:
            self._send(401, b"{}", {"X-Error-Code": "GatedRepo"})
        elif path.startswith("/api/models/"):
            self._list(path)
        else:
            model, _, rest = path.partition("/resolve/")
            revision, _, name = rest.partition("/")
            self._file(revision, name, self.hub.files_at(model).get(name))

    def _is_busy(self) -> bool:
        with self.hub.lock:
            self.hub.num_busy -= 1
            return self.hub.num_busy >= 0

    def _list(self, path: str) -> None:
        revision = path.rpartition("/")[2] if "/revision/" in path or "/tree/" in path else "main"
        commit = _COMMITS.get(revision)
        if commit is None:
            self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            files = self.hub.files_at(path).items()
            self._send_json([{"type": "file", "path": name, **self._facts(name, data, "oid")} for name, data in files])
        else:
            files = self.hub.files_at(path).items()
            siblings = [{"rfilename": name, **self._facts(name, data, "sha256")} for name, data in files]
            self._send_json({"id": "me/model", "sha": commit, "siblings": siblings})

    def _facts(self, name: str, data: bytes, of_lfs: str) -> dict[str, Any]:
        size, digest = len(data), self.hub.digest(name, data)
        of_git = {"size": size, "oid": digest[:40], "blobId": digest[:40]}
        return {**of_git, "lfs": {of_lfs: digest, "size": size, "pointerSize": 130}} if size >= _LARGE else of_git

    def _file(self, revision: str, name: str, data: bytes | None) -> None:
        self.hub.asked[f"{self.command} {name}"] += 1
        if data is None:
            self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        begin = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        etag = f'"{self.hub.digest(name, data)}"'
        headers = {"ETag": etag, "X-Repo-Commit": _COMMITS[revision], "Accept-Ranges": "bytes"}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        body = data[begin:]
        if self.command == "GET":
            with self.hub.lock:
                if self.hub.wrong[name] > 0:
                    self.hub.wrong[name] -= 1
                    body = bytes([body[0] ^ 1]) + body[1:]
        self._send(206 if begin else 200, body, headers, name)

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode())

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None, name: str = "") -> None:
        self.send_response(status)
        lines = {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})}
        for key, value in lines.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "GET":
            return
        with self.hub.lock:
            left = self.hub.breaks.get(name)
            upto = left.pop(0) if left else len(body)
        view = memoryview(body)[:upto]
        for at in range(0, len(view), _PIECE):
            time.sleep(self.hub.pause_s)
            piece = view[at : at + _PIECE]
            self.wfile.write(piece)
            self.hub.sent[name] += len(piece)
        if upto < len(body):
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that is gone is part of the tests."""


@contextmanager
def loopback_hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """It serves until the block ends."""
    hub = Hub(files)
    server = _Server(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
