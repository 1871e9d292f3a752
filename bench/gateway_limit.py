"""What fills the gateway's core: CPU a chunk, a small request and an open stream, and where it goes.

    python bench/gateway_limit.py             about 70 s; two cores are enough
    python bench/gateway_limit.py --profile   and the functions that the CPU went to, sampled
    python bench/gateway_limit.py --streams 4000
    python bench/gateway_limit.py --processes 2 --quick      the same of --gateway-processes 2

CPU is what the kernel charged the gateway's processes (user and system) over what they did, so that a noisy machine,
the load generator and the fake worker beside it change little; what a core could do is the inverse. Latency is what the
gateway adds to the worker's own, at shares of that limit; the three processes share the machine, so it is an upper
figure. Several processes: CPU of those that relay and of the one that coordinates apart. What they could do on cores of
their own follows: a process's inverse times their number, and never more than the coordinator's.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import uvloop
from gateway_cost import FAKE_WORKER, request, serve
from streams import KEY, Client, Endpoint, ended, message_of, wait_for

GOAL_CHUNKS_PER_S = 150_000
GOAL_REQUESTS_PER_S = 10_000
NUM_PLACES = 20_000
_SAMPLE_S = 0.001
_RELAY = "qserve.supervisor.gateway_process"


@dataclass(frozen=True)
class Used:
    """CPU of the gateway over `count` of something that took `wall_s`: of who relays, and of who coordinates."""

    cpu_s: float
    count: int
    wall_s: float
    coordinating_s: float
    num_relays: int

    @property
    def us_each(self) -> float:
        return (self.cpu_s + self.coordinating_s) / self.count * 1e6

    @property
    def per_core_s(self) -> float:
        return self.count / (self.cpu_s + self.coordinating_s)

    @property
    def on_own_cores_s(self) -> float:
        """A second, were there a core for each of them."""
        coordinator = self.count / self.coordinating_s if self.coordinating_s else float("inf")
        return min(self.num_relays * self.count / self.cpu_s, coordinator)

    def __str__(self) -> str:
        cost = (
            f"{self.us_each:7.1f} µs each = {self.per_core_s:9,.0f} a second and core   "
            f"(at {self.count / self.wall_s:9,.0f} a second, {100 * self.cpu_s / self.wall_s:3.0f} % of a core)"
        )
        if self.num_relays == 1:
            return cost
        relaying_us, coordinating_us = (1e6 * one / self.count for one in (self.cpu_s, self.coordinating_s))
        return (
            f"{cost}\n{'':24}relaying {relaying_us:.1f}, coordinating {coordinating_us:.1f} µs: "
            f"{self.on_own_cores_s:,.0f} a second on {self.num_relays + 1} cores of their own"
        )


class Meter:
    """CPU of the gateway's processes between `begin` and `used`."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._relays = relays_of(process)

    def _cpu_s(self) -> tuple[float, float]:
        own = _cpu_s(self._process)
        return (sum(map(_cpu_s, self._relays)), own) if self._relays else (own, 0.0)

    def begin(self) -> None:
        self._began_cpu_s, self._began_s = self._cpu_s(), time.perf_counter()

    def used(self, count: int) -> Used:
        relaying, coordinating = (now - then for now, then in zip(self._cpu_s(), self._began_cpu_s, strict=True))
        wall_s = time.perf_counter() - self._began_s
        return Used(relaying, count, wall_s, coordinating, max(1, len(self._relays)))


def relays_of(gateway: psutil.Process) -> list[psutil.Process]:
    """The processes that relay for it; none where it does so itself."""
    return [one for one in gateway.children() if any(_RELAY in word for word in one.cmdline())]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def resident_bytes(gateway: psutil.Process) -> int:
    """Of all its processes."""
    return sum(int(one.memory_info().rss) for one in (gateway, *relays_of(gateway)))


async def chunks(way: Endpoint, meter: Meter, num_streams: int, chunks_per_s: float, duration_s: float) -> Used:
    """Streams of one speed; 0: as fast as the worker writes."""
    clients = [await way.connect() for _ in range(num_streams)]
    per_stream = int((chunks_per_s or 4000) * duration_s)
    itl_ms = 1000 / chunks_per_s if chunks_per_s else 0
    meter.begin()
    await asyncio.gather(*(client.ask(request(per_stream, ttft_ms=50, itl_ms=itl_ms)) for client in clients))
    used = meter.used(num_streams * per_stream)
    close(clients)
    return used


def small() -> bytes:
    """A request of a few words whose answer is one token, not streamed."""
    body = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    return message_of("/v1/chat/completions", body)


async def small_requests(way: Endpoint, meter: Meter, num_clients: int, duration_s: float) -> Used:
    """As many as `num_clients` connections get through."""
    clients = [await way.connect() for _ in range(num_clients)]
    message, count, end_s = small(), 0, time.perf_counter() + duration_s

    async def ask(client: Client) -> None:
        nonlocal count
        while time.perf_counter() < end_s:
            await client.ask(message)
            count += 1

    meter.begin()
    await asyncio.gather(*map(ask, clients))
    used = meter.used(count)
    close(clients)
    return used


async def added_ms(ways: tuple[Endpoint, Endpoint], rate: float, duration_s: float) -> tuple[list[float], list[float]]:
    """Milliseconds of small requests that begin at `rate` a second, directly and through the gateway."""
    found = []
    for way in ways:
        clients = [await way.connect() for _ in range(64)]
        idle, waiting, times = collections.deque(clients), set(), []

        async def one(client: Client, idle: collections.deque[Client] = idle, times: list[float] = times) -> None:
            begin_s = time.perf_counter()
            await client.ask(small())
            times.append((time.perf_counter() - begin_s) * 1000)
            idle.append(client)

        next_s = time.perf_counter()
        end_s = next_s + duration_s
        while (now_s := time.perf_counter()) < end_s:
            while next_s <= now_s and idle:
                task = asyncio.create_task(one(idle.popleft()))
                waiting.add(task)
                task.add_done_callback(waiting.discard)
                next_s += 1 / rate
            await asyncio.sleep(max(0.0005, next_s - now_s))
        await asyncio.gather(*waiting)
        close(clients)
        found.append(sorted(times))
    return found[0], found[1]


async def open_streams(way: Endpoint, gateway: psutil.Process, num_streams: int) -> str:
    """So many streams that say little: memory, and how long the last one waited for its first event."""
    before = resident_bytes(gateway)
    message = request(4, ttft_ms=10, itl_ms=2000 if num_streams < 4000 else 20_000)
    begin_s = time.perf_counter()
    clients, asking = [], []
    for _ in range(num_streams):  # each asks at once: the gateway keeps few connections that showed no key
        clients.append(await way.connect())
        asking.append(clients[-1].ask(message))
    while any(not client.first_s for client in clients) and time.perf_counter() - begin_s < 240:
        await asyncio.sleep(0.05)
    last_s = max(client.first_s for client in clients) - begin_s
    held = resident_bytes(gateway)
    await asyncio.gather(*asking)
    close(clients)
    return (
        f"{num_streams} begun one after the other: the last first event after {last_s:.2f} s, "
        f"{(held - before) / num_streams / 1024:.0f} KiB each, {held / 1e6:.0f} MB in all"
    )


async def serve_many(socket: Path, key: str, port_file: Path, count: int) -> None:
    """The coordinator's process, with its relays, before the fake worker."""
    from qserve.gateway.processes.coordinator import Service
    from qserve.gateway.run_history import RunHistory
    from qserve.gateway.settings import GatewaySettings
    from qserve.supervisor import ports
    from qserve.supervisor.gateways import Processes, make_gateway
    from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

    async def no_host() -> list[dict[str, Any]]:
        return []

    worker = WorkerStatus(
        WorkerFacts("chat", ("fake",), UnixAddress(socket), key, NUM_PLACES, 4096), WorkerState.READY, ""
    )
    service = Service(lambda: None, no_host, lambda row: None, RunHistory())
    listener = ports.bind("127.0.0.1", 0)
    settings = GatewaySettings(keys=(key,))
    gateway = make_gateway(Processes(count), settings, [worker], service, None, listener, lambda *_, **__: None)
    gateway.begin()
    await gateway.ready()
    partial = port_file.with_suffix(".partial")
    partial.write_text(str(listener.getsockname()[1]))
    partial.rename(port_file)
    await gateway.watch()


def close(clients: list[Client]) -> None:
    """Their connections."""
    for client in clients:
        client._transport.close()  # type: ignore[union-attr]


@contextlib.contextmanager
def processes(profile: Path | None, count: int) -> Iterator[tuple[tuple[Endpoint, Endpoint], psutil.Process]]:
    """The fake worker and the gateway, until the block ends."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        socket, port_file = Path(folder) / "worker.sock", Path(folder) / "port"
        worker = running.enter_context(ended([sys.executable, str(FAKE_WORKER), "--socket", str(socket), "--key", KEY]))
        wait_for(socket.exists, worker)
        serving = [sys.executable, __file__, "--serve", str(socket), "--key", KEY, "--port-file", str(port_file)]
        serving += ["--processes", str(count)]
        gateway = running.enter_context(ended([*serving, *(["--profile-file", str(profile)] if profile else [])]))
        wait_for(port_file.exists, gateway)
        ways = (Endpoint("direct", socket, 0), Endpoint("gateway", socket, int(port_file.read_text())))
        yield ways, psutil.Process(gateway.pid)


class Sampler:
    """Where the CPU is: the running frame for each millisecond of it. What C code takes counts for who called it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._own: collections.Counter[str] = collections.Counter()
        self._within: collections.Counter[str] = collections.Counter()
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR1, self._write)
        signal.setitimer(signal.ITIMER_PROF, _SAMPLE_S, _SAMPLE_S)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        names = []
        while frame is not None:
            code = frame.f_code
            names.append(f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}: {code.co_qualname}")
            frame = frame.f_back
        self._own[names[0]] += 1
        self._within.update(set(names))

    def _write(self, *_: object) -> None:
        total = sum(self._own.values()) or 1
        lines = [f"{total} samples; own CPU, and with what is called"]
        for name, count in self._own.most_common(48):
            lines.append(f"  {100 * count / total:5.1f} %  {100 * self._within[name] / total:5.1f} %  {name}")
        part = self._file.with_suffix(".part")
        part.write_text("\n".join(lines) + "\n")
        part.rename(self._file)
        self._own.clear()
        self._within.clear()


def print_profile(profile: Path | None, gateway: psutil.Process) -> None:
    """Prints what was sampled since the last time."""
    if profile is None:
        return
    profile.unlink(missing_ok=True)
    os.kill(gateway.pid, signal.SIGUSR1)
    for _ in range(100):
        if profile.exists():
            print(profile.read_text())
            return
        time.sleep(0.05)


async def measure(arguments: argparse.Namespace, profile: Path | None) -> None:
    with processes(profile, arguments.processes) as (ways, gateway):
        meter, through = Meter(gateway), ways[1]
        gc.disable()
        if arguments.only_streams:
            print(f"  {await open_streams(through, gateway, arguments.streams)}")
            return
        await small_requests(through, meter, 32, 1.0)  # warms it up
        print_profile(profile, gateway)
        print(f"Chunks (goal {GOAL_CHUNKS_PER_S:,} a second and core)")
        for num_streams, rate in ((64, 200.0), (64, 1000.0), (256, 0.0)):
            used = [await chunks(through, meter, num_streams, rate, arguments.seconds) for _ in range(arguments.rounds)]
            pace = f"{rate:g}/s" if rate else "unpaced"
            print(f"  {num_streams:4} streams, {pace:8} {middle(used)}")
        print_profile(profile, gateway)
        print(f"Small requests (goal {GOAL_REQUESTS_PER_S:,} a second and core)")
        used = [await small_requests(through, meter, 32, arguments.seconds) for _ in range(arguments.rounds)]
        limit = middle(used)
        print(f"   32 clients           {limit}")
        print_profile(profile, gateway)
        if profile is None and not arguments.quick:
            print("Added to a small request, at shares of that limit (ms)")
            for share in (0.1, 0.5, 0.9):
                direct, through_ms = await added_ms(ways, share * limit.per_core_s, arguments.seconds)
                p50, p99 = (at(through_ms, q) - at(direct, q) for q in (0.5, 0.99))
                own = f"{at(direct, 0.5):.2f}, {at(direct, 0.99):.2f}"
                print(f"  {100 * share:3.0f} %: p50 {p50:6.2f}   p99 {p99:6.2f}   (direct {own})")
            print("Open streams")
            print(f"  {await open_streams(through, gateway, arguments.streams)}")


def middle(used: list[Used]) -> Used:
    """The one whose CPU is the median."""
    return sorted(used, key=lambda one: one.us_each)[len(used) // 2]


def at(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


def main() -> None:
    """Reads the flags; with --serve the same file is the gateway's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="of each; the median is told")
    parser.add_argument("--streams", type=int, default=2000, help="open at once")
    parser.add_argument("--profile", action="store_true", help="sample where the gateway's CPU goes; no latencies")
    parser.add_argument("--quick", action="store_true", help="CPU only: neither latencies nor open streams")
    parser.add_argument("--only-streams", action="store_true", help="open streams and nothing else")
    parser.add_argument("--processes", type=int, default=1, help="of the gateway, as --gateway-processes")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    parser.add_argument("--port-file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--profile-file", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        if arguments.profile_file:
            Sampler(arguments.profile_file)
        logging.disable(logging.INFO)  # as `qserve up` without --log-level info
        if arguments.processes > 1:
            uvloop.run(serve_many(arguments.serve, arguments.key, arguments.port_file, arguments.processes))
        else:
            serve(arguments.serve, arguments.key, arguments.port_file, False, NUM_PLACES)
        return
    with tempfile.TemporaryDirectory() as folder:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
        uvloop.run(measure(arguments, Path(folder) / "profile" if arguments.profile else None))


if __name__ == "__main__":
    main()
