"""What the gateway costs: the same fake worker asked directly on its socket and through the gateway, in turns.

    python bench/gateway_cost.py              about 70 s on two cores
    python bench/gateway_cost.py --rounds 9   more rounds against a noisy machine

Three processes share the machine: this load generator, the worker (bench/fake_worker.py) and the gateway, which runs
as `qserve up` runs it. Every figure is a median over pairs that ran one after the other: compare the ratio, not the
absolute numbers, with another run's. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httptools
import psutil
import uvloop

TARGET_TTFT_MS = 1.0
TARGET_THROUGHPUT = 0.98
TARGET_RSS_MB = 120
KEY = secrets.token_hex(16)
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


class Client(asyncio.Protocol):
    """One keep-alive connection that counts events and looks at nothing else, so as to cost the machine little."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.WriteTransport | None = None
        self.num_events = 0
        self.first_s = 0.0
        self.last_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError("closed before the answer was complete"))

    def ask(self, request: bytes) -> asyncio.Future[None]:
        """Sends; the future is done when the answer is complete."""
        self.num_events = 0
        self.first_s = 0.0
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        assert self._transport is not None
        self.sent_s = time.perf_counter()
        self._transport.write(request)
        return self._done

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.last_s = time.perf_counter()
        self.first_s = self.first_s or self.last_s
        self.num_events += body.count(b"data: ")

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() != 200:
            self._done.set_exception(RuntimeError(f"status {self._parser.get_status_code()}"))
        else:
            self._done.set_result(None)
        self._parser = httptools.HttpResponseParser(self)


@dataclass(frozen=True)
class Way:
    """A way to the worker: its unix socket (`port` 0), or the gateway's port."""

    name: str
    socket: Path
    port: int

    async def connect(self) -> Client:
        loop = asyncio.get_running_loop()
        if self.port:
            return (await loop.create_connection(Client, "127.0.0.1", self.port))[1]
        return (await loop.create_unix_connection(Client, str(self.socket)))[1]


def request(num_chunks: int, ttft_ms: float, itl_ms: float) -> bytes:
    """A streamed chat request, the whole HTTP message."""
    value = {
        "model": "fake", "stream": True, "temperature": 0.7, "max_tokens": num_chunks,
        "messages": [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Count! " * 64}],
        "metadata": {"chunks": str(num_chunks), "ttft_ms": str(ttft_ms), "itl_ms": str(itl_ms)},
    }  # fmt: skip
    body = json.dumps(value).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {KEY}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def ttft_pairs(ways: tuple[Way, Way], num_pairs: int) -> tuple[list[float], list[float]]:
    """TTFT in ms of single streams, directly and through the gateway in turns, on connections that stay open."""
    clients = [await way.connect() for way in ways]
    message = request(num_chunks=4, ttft_ms=5, itl_ms=2)
    ttft_ms: tuple[list[float], list[float]] = ([], [])
    for index in range(num_pairs + 20):
        for client, times in zip(clients, ttft_ms, strict=True):
            await client.ask(message)
            if index >= 20:  # the first ones warm the pools up
                times.append((client.first_s - client.sent_s) * 1000)
    return ttft_ms


async def tokens_per_s(way: Way, num_streams: int, chunks_per_s: float, duration_s: float) -> float:
    """Events a second of `num_streams` streams that start together, up to the last event of the last stream."""
    clients = [await way.connect() for _ in range(num_streams)]
    num_chunks = int(chunks_per_s * duration_s)
    message = request(num_chunks, ttft_ms=50, itl_ms=1000 / chunks_per_s)
    await asyncio.gather(*(client.ask(message) for client in clients))
    for client in clients:
        assert client.num_events == num_chunks + 1, f"{client.num_events} events instead of {num_chunks} and [DONE]"
    begin_s = min(client.first_s for client in clients)
    end_s = max(client.last_s for client in clients)
    for client in clients:
        client._transport.close()  # type: ignore[union-attr]
    return num_streams * num_chunks / (end_s - begin_s)


@contextlib.contextmanager
def processes() -> Iterator[tuple[tuple[Way, Way], psutil.Process]]:
    """The worker and the gateway, until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "worker.sock"
        port_file = Path(folder) / "port"
        commands = [
            [sys.executable, str(FAKE_WORKER), "--socket", str(socket), "--key", KEY],
            [sys.executable, __file__, "--serve", str(socket), "--key", KEY, "--port-file", str(port_file)],
        ]
        running = [subprocess.Popen(command) for command in commands]
        try:
            while not (socket.exists() and port_file.exists()):
                if any(process.poll() is not None for process in running):
                    raise SystemExit("the worker or the gateway did not start")
                time.sleep(0.05)
            ways = (Way("direct", socket, 0), Way("gateway", socket, int(port_file.read_text())))
            yield ways, psutil.Process(running[1].pid)
        finally:
            for process in running:
                process.terminate()
                process.wait()


def serve(socket: Path, key: str, port_file: Path) -> None:
    """The gateway's process, with what `qserve up` imports and logs."""
    import qserve.cli.main
    import qserve.up  # noqa: F401
    from qserve.engine.base import UnixAddress, WorkerEndpoint, WorkerState
    from qserve.gateway.app import build_gateway
    from qserve.gateway.server import build_server
    from qserve.gateway.settings import GatewaySettings

    logging.basicConfig(level=logging.INFO, filename=str(port_file.with_name("log")))
    worker = WorkerEndpoint(
        name="chat", models=("fake",), address=UnixAddress(socket), key=key, max_num_seqs=64, max_model_len=4096,
        state=WorkerState.READY, detail="",
    )  # fmt: skip
    server = build_server(build_gateway(GatewaySettings(keys=(key,)), [worker]), "127.0.0.1", 0)

    async def run() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        partial = port_file.with_suffix(".partial")
        partial.write_text(str(server.servers[0].sockets[0].getsockname()[1]))
        partial.rename(port_file)
        await serving

    uvloop.run(run())


async def measure(ways: tuple[Way, Way], gateway: psutil.Process, arguments: argparse.Namespace) -> bool:
    """Runs everything, prints the table, tells whether the targets hold."""
    direct_ms, gateway_ms = await ttft_pairs(ways, arguments.pairs)
    added_ms = statistics.median(gateway_ms) - statistics.median(direct_ms)
    paired_ms = statistics.median(b - a for a, b in zip(direct_ms, gateway_ms, strict=True))
    print(f"TTFT, 1 stream, {arguments.pairs} pairs (median ms)")
    print(f"  direct {statistics.median(direct_ms):.2f}   gateway {statistics.median(gateway_ms):.2f}   "
          f"added {added_ms:.2f} (median of pairs {paired_ms:.2f})   target ≤ {TARGET_TTFT_MS}")  # fmt: skip

    print(f"Tokens/s, {arguments.streams} streams × {arguments.rate:g} chunks/s, {arguments.seconds:g} s each")
    ratios, cpu_us = [], []
    for index in range(arguments.rounds):
        order = ways if index % 2 == 0 else ways[::-1]
        rates: dict[str, float] = {}
        for way in order:
            before = gateway.cpu_times()
            rates[way.name] = await tokens_per_s(way, arguments.streams, arguments.rate, arguments.seconds)
            if way.port:
                after = gateway.cpu_times()
                used_s = after.user + after.system - before.user - before.system
                cpu_us.append(used_s / (arguments.streams * arguments.rate * arguments.seconds) * 1e6)
        ratios.append(rates["gateway"] / rates["direct"])
        print(f"  direct {rates['direct']:8.0f}   gateway {rates['gateway']:8.0f}   ratio {ratios[-1]:.4f}   "
              f"gateway CPU {cpu_us[-1]:.1f} µs a chunk")  # fmt: skip
    ratio = statistics.median(ratios)
    rss_mb = gateway.memory_info().rss / 1e6
    print(f"  median ratio {ratio:.4f}   target ≥ {TARGET_THROUGHPUT}")
    print(f"Gateway RSS after it: {rss_mb:.0f} MB   target < {TARGET_RSS_MB}")
    return added_ms <= TARGET_TTFT_MS and ratio >= TARGET_THROUGHPUT and rss_mb < TARGET_RSS_MB


def main() -> None:
    """Reads the flags; the same file is the load generator and, with --serve, the gateway's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=190.0, help="chunks a second and stream")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--port-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.key, arguments.port_file)
        return
    with processes() as (ways, gateway):
        held = uvloop.run(measure(ways, gateway, arguments))
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
