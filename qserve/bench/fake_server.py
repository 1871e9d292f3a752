"""A server without a model that answers with known latencies, to test load generators.

    python -m qserve.bench.fake_server --ttft-ms 60 --itl-ms 15

Prints its address, then answers until it is ended or its parent is. A thread for each connection sleeps until the
moment that the schedule says, counted from the first line of the request, so that lateness does not add up; timers of
event loops have a grain of a millisecond. Words are tokens: POST /tokenize counts them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["FakeServer", "main"]

MODEL = "fake"
_POLL_S = 0.5
# A thread that wakes waits for the interpreter; its usual 5 ms would be seen as latency.
_SWITCH_S = 1e-4


class FakeServer(ThreadingHTTPServer):
    """Chat, completions and rewards at a set speed.

    Args:
        ttft_ms, itl_ms: from the request to the first token, and from one to the next; 0: as fast as it can. A reward
            request takes `ttft_ms`.
        host, port: 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 512

    def __init__(self, ttft_ms: float, itl_ms: float, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__((host, port), _Connection)
        self.ttft_s = ttft_ms / 1e3
        self.itl_s = itl_ms / 1e3
        self.num_generations = 0

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves is no error."""


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def parse_request(self) -> bool:
        """The clock starts with the request's first line."""
        self._began_s = time.perf_counter()
        return super().parse_request()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Nothing."""

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1_000_000}]})
        else:
            self._send(404, {"error": {"message": f"no route {self.path}"}})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        if self.path == "/tokenize":
            words = str(request["prompt"]).split()
            self._send(200, {"count": len(words), "tokens": list(range(len(words)))})
        elif self.path == "/v1/reward":
            self._wait(0)
            answers = request.get("responses") or request.get("conversations") or request.get("texts") or [""]
            num_tokens = len(json.dumps(request).split())
            data = [{"index": index, "reward": 0.5} for index in range(len(answers))]
            self._send(200, {"data": data, "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens}})
        elif self.path in ("/v1/chat/completions", "/v1/completions"):
            self._generate(request)
        else:
            self._send(404, {"error": {"message": f"no route {self.path}"}})

    def _generate(self, request: dict[str, Any]) -> None:
        self.server.num_generations += 1
        num_tokens = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
        is_chat = self.path == "/v1/chat/completions"
        prompt = request["messages"][-1]["content"] if is_chat else request["prompt"]
        num_prompt = len(str(prompt).split())
        usage = {"prompt_tokens": num_prompt, "completion_tokens": num_tokens, "total_tokens": num_prompt + num_tokens}
        if not request.get("stream"):
            self._wait(num_tokens - 1)
            self._send(200, {"choices": [_choice(is_chat, "message", " w" * num_tokens)], "usage": usage})
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        token = _framed({"choices": [_choice(is_chat, "delta", " w")]})
        for index in range(num_tokens):
            self._wait(index)
            self.wfile.write(token)
        last = _framed({"choices": [], "usage": usage})
        self.wfile.write(last + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    def _wait(self, index: int) -> None:
        """Until token `index` is due."""
        left_s = self._began_s + self.server.ttft_s + index * self.server.itl_s - time.perf_counter()
        if left_s > 0:
            time.sleep(left_s)

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _choice(is_chat: bool, where: str, text: str) -> dict[str, Any]:
    content = {where: {"role": "assistant", "content": text}} if is_chat else {"text": text}
    return {"index": 0, **content, "finish_reason": None}


def _framed(event: dict[str, Any]) -> bytes:
    head = {"id": "chatcmpl-fake", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    return _chunk(b"data: " + json.dumps({**head, **event}, separators=(",", ":")).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def main() -> None:
    """Reads the flags and serves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ttft-ms", type=float, default=60.0)
    parser.add_argument("--itl-ms", type=float, default=15.0)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    arguments = parser.parse_args()
    sys.setswitchinterval(_SWITCH_S)
    server = FakeServer(arguments.ttft_ms, arguments.itl_ms, arguments.host, arguments.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(server.url + "\n")
    sys.stdout.flush()
    parent = os.getppid()
    with contextlib.suppress(KeyboardInterrupt):
        while os.getppid() == parent:
            time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
