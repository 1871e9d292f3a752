"""A worker of known speed: no model, no torch, the protocol of qserve/worker/base.py.

    python bench/fake_worker.py --socket /tmp/fake.sock --key secret

A request says in `metadata` (a field that every worker takes and ignores) how it wants to be answered; strings all:
    chunks    how many tokens to generate                               (default: max_tokens, at most 16)
    ttft_ms   time to the first event                                   (0)
    itl_ms    time between events; streams of one speed share one beat, as in a batch   (0: as fast as it can)
    fault     hang (never answers) · die (closes the connection after half the chunks) · half (dies within an event)
              · 500 · html
GET /debug tells running generations, connections whose reader is behind, tokens written, connections open and ever
opened, and the last request's headers.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\nx-request-id: worker-side\r\n\r\n"
)
_FRAMES: dict[tuple[int, bool], bytes] = {}
METRICS = """# HELP fake_tokens_total Tokens.
# TYPE fake_tokens_total counter
fake_tokens_total{kind="generated"} 7
# HELP process_resident_memory_bytes Resident memory size in bytes.
# TYPE process_resident_memory_bytes gauge
process_resident_memory_bytes 1e+06
"""


def event(index: int) -> bytes:
    """The bytes of the event that carries the token ` w<index>`."""
    delta = {"index": 0, "delta": {"content": f" w{index}"}, "logprobs": None, "finish_reason": None}
    chunk = {
        "id": "chatcmpl-fake",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "fake",
        "choices": [delta],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def frame(index: int, is_noted: bool) -> bytes:
    """`event(index)` framed, after its line of a journal where that is asked for; made once."""
    if (index, is_noted) not in _FRAMES:
        line = b":j[[0,%d]]\n" % (100_000 + index) if is_noted else b""
        _FRAMES[index, is_noted] = framed(line + event(index))
    return _FRAMES[index, is_noted]


def tail(num_chunks: int, with_usage: bool) -> bytes:
    """The last events and the end of the body."""
    usage = {"prompt_tokens": 5, "completion_tokens": num_chunks, "total_tokens": 5 + num_chunks}
    last = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "choices": [], "usage": usage}
    usage_event = framed(b"data: " + json.dumps(last).encode() + b"\n\n") if with_usage else b""
    return usage_event + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Beat:
    """Writes one token to every stream of one speed, on a schedule that does not slip."""

    def __init__(self, itl_s: float) -> None:
        self._itl_s = itl_s
        self._streams: dict[Stream, None] = {}
        self._task: asyncio.Task[None] | None = None

    def join(self, stream: Stream) -> None:
        """The stream gets its tokens from the next beat on."""
        self._streams[stream] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())

    def leave(self, stream: Stream) -> None:
        """No more tokens; with the last stream the beat stops, and starts anew with the next."""
        self._streams.pop(stream, None)
        if not self._streams and self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while self._streams:
            for stream in tuple(self._streams):
                stream.step()
            next_s += self._itl_s
            await asyncio.sleep(max(0.0, next_s - loop.time()))


@dataclass
class State:
    """What /debug tells."""

    running: int = 0
    paused: int = 0
    tokens: int = 0
    connections: int = 0
    connections_ever: int = 0
    requests: int = 0
    order: list[str] = field(default_factory=list)
    last_headers: dict[str, str] = field(default_factory=dict)
    beats: dict[float, Beat] = field(default_factory=dict)


class Stream:
    """One running generation, streamed or not."""

    def __init__(self, connection: Connection, request: dict[str, Any]) -> None:
        knobs = request.get("metadata") or {}
        self._connection = connection
        self.streamed = bool(request.get("stream"))
        self.with_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self.num_chunks = int(knobs.get("chunks", min(request.get("max_tokens") or 16, 16)))
        self.ttft_s = float(knobs.get("ttft_ms", 0)) / 1000
        self.itl_s = float(knobs.get("itl_ms", 0)) / 1000
        self.fault = knobs.get("fault", "")
        self.index = 0
        self._timer: asyncio.TimerHandle | None = None
        self._beat: Beat | None = None
        connection.state.running += 1

    def start(self) -> None:
        """First token after ttft_ms."""
        if self.fault == "hang":
            return
        wait_s = self.ttft_s if self.streamed else self.ttft_s + self.itl_s * self.num_chunks
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._first)

    def _first(self) -> None:
        if not self.streamed:
            self._connection.finish_whole(self.num_chunks)
            return
        self._connection.write(_HEAD)
        if self.itl_s:
            beats = self._connection.state.beats
            self._beat = beats.setdefault(self.itl_s, Beat(self.itl_s))
            self._beat.join(self)
        else:
            self._flood()

    def _flood(self) -> None:
        while self._connection.stream is self and not self._connection.paused:
            self.step()

    def resume(self) -> None:
        if self.streamed and self.index and not self.itl_s:
            self._flood()

    def step(self) -> None:
        """Writes the next token; holds it while the reader is behind."""
        if self._connection.paused:
            return
        if self.fault and self.index >= self.num_chunks // 2:
            if self.fault == "half":
                self._connection.write(framed(event(self.index)[:25]))
            self._connection.abort()
        elif self.index < self.num_chunks:
            self._connection.write(frame(self.index, self._connection.is_noted))
            self._connection.state.tokens += 1
            self.index += 1
        else:
            self._connection.write(tail(self.num_chunks, self.with_usage))
            self._connection.finished()

    def stop(self) -> None:
        """Ends it, finished or not."""
        if self._timer is not None:
            self._timer.cancel()
        if self._beat is not None:
            self._beat.leave(self)
        self._connection.state.running -= 1


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time."""

    def __init__(self, state: State, key: str, writes_journal: bool) -> None:
        self.state = state
        self._writes_journal = writes_journal
        self.stream: Stream | None = None
        self.paused = False
        self._key = key
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    @property
    def is_noted(self) -> bool:
        """Whether the stream that runs has a journal."""
        return self._writes_journal and "x-qserve-journal" in self._headers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.state.connections += 1
        self.state.connections_ever += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connections -= 1
        self.state.paused -= self.paused
        self._end()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def pause_writing(self) -> None:
        self.paused = True
        self.state.paused += 1

    def resume_writing(self) -> None:
        self.paused = False
        self.state.paused -= 1
        if self.stream is not None:
            self.stream.resume()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode().lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        path = self._url.decode()
        if self._headers.get("authorization") != f"Bearer {self._key}":
            self._answer(401, {"error": {"message": "wrong internal key"}})
        elif self._parser.get_method() == b"GET":
            self._get(path)
        else:
            self._post(path, json.loads(b"".join(self._body)))

    def _get(self, path: str) -> None:
        state = self.state
        documents: dict[str, Any] = {
            "/health": {"status": "ok"},
            "/v1/qserve/memory": {"terms": [{"name": "weights", "bytes": 1024}]},
            "/debug": {
                "running": state.running,
                "paused": state.paused,
                "tokens": state.tokens,
                "requests": state.requests,
                "order": state.order,
                "connections": state.connections,
                "connections_ever": state.connections_ever,
                "last_headers": state.last_headers,
            },
        }
        if path == "/metrics":
            self._answer(200, METRICS.encode(), "text/plain; version=0.0.4")
        else:
            self._answer(200 if path in documents else 404, documents.get(path, {}))

    def _post(self, path: str, request: dict[str, Any]) -> None:
        if path == "/tokenize":
            text = request.get("prompt") or "".join(str(message) for message in request.get("messages") or ())
            self._answer(200, {"count": len(text), "max_model_len": 4096, "tokens": [ord(letter) for letter in text]})
            return
        if path == "/detokenize":
            self._answer(200, {"prompt": "".join(chr(token % 0xD800) for token in request["tokens"])})
            return
        self.state.requests += 1
        self.state.last_headers = self._headers
        if request.get("user"):
            self.state.order.append(request["user"])
        fault = (request.get("metadata") or {}).get("fault")
        if fault == "500":
            self._answer(500, {"error": {"message": "out of memory", "type": "server_error", "code": "oom"}})
        elif fault == "html":
            self._answer(502, b"<html>bad gateway</html>", "text/html")
        else:
            self._is_chat = path == "/v1/chat/completions"
            self.stream = Stream(self, request)
            self.stream.start()

    def finish_whole(self, num_tokens: int) -> None:
        """The answer to a request that is not streamed."""
        text = "".join(f" w{index}" for index in range(num_tokens))
        usage = {"prompt_tokens": 5, "completion_tokens": num_tokens, "total_tokens": 5 + num_tokens}
        inner = {"message": {"role": "assistant", "content": text}} if self._is_chat else {"text": text}
        choice = {"index": 0, **inner, "logprobs": None, "finish_reason": "length"}
        kind = "chat.completion" if self._is_chat else "text_completion"
        answer = {"id": "fake", "object": kind, "created": 1, "model": "fake", "choices": [choice], "usage": usage}
        self._answer(200, answer)
        self.finished()

    def _answer(self, status: int, body: Any, content_type: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        head = f"HTTP/1.1 {status} Fake\r\ncontent-type: {content_type}\r\ncontent-length: {len(data)}\r\n\r\n"
        self.write(head.encode() + data)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        """As if the process had died: no end of the body."""
        self._end()
        if self._transport is not None:
            self._transport.close()

    def finished(self) -> None:
        self._end()

    def _end(self) -> None:
        if self.stream is not None:
            self.stream.stop()
            self.stream = None


async def serve(socket: Path, key: str, writes_journal: bool) -> None:
    """Listens until it is killed."""
    state = State()
    with contextlib.suppress(FileNotFoundError):
        socket.unlink()
    server = await asyncio.get_running_loop().create_unix_server(
        lambda: Connection(state, key, writes_journal), str(socket), backlog=512
    )
    await server.serve_forever()


def main() -> None:
    """Reads the flags and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--journal", action="store_true", help="streams have what another worker needs, which is none")
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(arguments.socket, arguments.key, arguments.journal))


if __name__ == "__main__":
    main()
