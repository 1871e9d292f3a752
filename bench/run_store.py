"""The run store: what a million requests take, what a kill loses, what writing costs the gateway.

    python bench/run_store.py                 a million requests: size of the file, seconds of a report's sums
    python bench/run_store.py --kills 50      a real gateway under load, killed with SIGKILL at random moments
    python bench/run_store.py --cost          64 streams through a gateway that keeps and one that does not, in turns

The gateway is the one of `qserve up` in front of bench/fake_worker.py, with a run store in a folder of its own. Exit
status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import uvloop
from gateway_cost import request, tokens_per_s
from streams import KEY, Endpoint, ended, serving_at, wait_for

from qserve.runs import RunStore
from qserve.runs.database import FILE_NAME
from qserve.runs.retention import Retention
from qserve.runs.writer import NewRun, RequestLabel, RequestRow, RunWriter

TARGET_MB = 300
TARGET_REPORT_S = 5.0
TARGET_LOSS_S = 1.0
TARGET_COST = 0.01
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
LABEL = RequestLabel("POST", "/v1/chat/completions", "demo", "chat", 200, "", False, False)
SERVICE_ID = "20261121-000000-1"


def new_run(folder: Path) -> NewRun:
    return NewRun(SERVICE_ID, ("qserve", "up"), {}, {}, folder / "runs" / SERVICE_ID)


def million(num_requests: int) -> bool:
    """Writes a day of requests through the writer and sums them up as a report does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writer = RunWriter(folder, new_run(folder), Retention(max_bytes=1 << 34))
        began_s, first_ms = time.perf_counter(), int((time.time() - 86400) * 1000)
        chance = random.Random(7)
        for number in range(num_requests):
            while len(writer._requests) > 40_000:
                time.sleep(0.01)
            ttft_us = int(chance.expovariate(1 / 80_000))
            tokens = chance.randint(1, 400)
            label = LABEL if chance.random() > 0.01 else LABEL._replace(status=502, error_code="worker_died")
            row = RequestRow(
                label,
                first_ms + number * 86_400_000 // num_requests,
                ttft_us + tokens * 20_000,
                chance.randint(5, 50_000),
                ttft_us,
                chance.randint(10, 4000),
                tokens,
                tokens + 1,
                f"req-0123456789ab-{number:06x}",
            )
            writer.request(row)
        writer.close(0)
        while RunStore.open(folder).run().state == "running":
            time.sleep(0.1)
        print(f"{num_requests:,} requests written in {time.perf_counter() - began_s:.1f} s")
        size_mb = (folder / FILE_NAME).stat().st_size / 1e6
        store = RunStore.open(folder)
        run = store.run()
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        traffic = store.traffic(run)
        took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        assert sum(group.num_requests for group in traffic.groups) == num_requests
        print(f"  store {size_mb:.0f} MB   target < {TARGET_MB} a million")
        print(f"  all of it summed up: {took_s:.1f} s ({cpu_s:.1f} s of CPU)   target < {TARGET_REPORT_S}")
        return size_mb < TARGET_MB * num_requests / 1e6 and took_s < TARGET_REPORT_S


@contextlib.contextmanager
def fake_worker(folder: Path) -> Iterator[Path]:
    socket = folder / "worker.sock"
    with ended([sys.executable, str(FAKE_WORKER), "--socket", str(socket), "--key", KEY]) as worker:
        wait_for(socket.exists, worker)
        yield socket


@contextlib.contextmanager
def gateway(folder: Path, socket: Path, state: Path | None) -> Iterator[tuple[psutil.Process, int]]:
    """A gateway's process and its port; it keeps requests in `state`, None: nowhere."""
    port_file = folder / f"port-{time.monotonic_ns()}"
    command = [sys.executable, __file__, "--serve", str(socket), "--key", KEY, "--port-file", str(port_file)]
    with ended([*command, "--state", str(state)] if state else command) as process:
        wait_for(port_file.exists, process)
        yield psutil.Process(process.pid), int(port_file.read_text())


def serve(socket: Path, key: str, port_file: Path, state: Path | None) -> None:
    """The gateway's process, as `qserve up` runs it."""
    import qserve.cli.main
    import qserve.supervisor  # noqa: F401
    from qserve.gateway.app import build_gateway
    from qserve.gateway.http.server import build_server
    from qserve.gateway.settings import GatewaySettings
    from qserve.supervisor.record import Recording, RunRecord
    from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

    worker = WorkerStatus(
        WorkerFacts(
            name="chat", models=("fake",), address=UnixAddress(socket), key=key, max_num_seqs=64, max_model_len=4096
        ),
        state=WorkerState.READY,
        detail="",
    )
    recording = Recording(state, new_run(state)) if state else None
    record = RunRecord(port_file.with_suffix(".run"), recording)
    app = build_gateway(GatewaySettings(keys=(key,)), [worker], runs=record.kept)
    server = build_server(app, "127.0.0.1", 0)

    uvloop.run(serving_at(server, port_file))


async def finished_until_killed(way: Endpoint, process: psutil.Process, after_s: float) -> tuple[list[float], float]:
    """When each request was finished, as the client saw it, and when the gateway was killed."""
    finished_s: list[float] = []

    async def keep_asking() -> None:
        with contextlib.suppress(ConnectionError, AssertionError):
            client = await way.connect()
            while True:
                await client.ask(request(num_chunks=2, ttft_ms=0, itl_ms=1))
                finished_s.append(time.monotonic())

    asking = [asyncio.create_task(keep_asking()) for _ in range(8)]
    await asyncio.sleep(after_s)
    killed_s = time.monotonic()
    process.kill()
    _, late = await asyncio.wait(asking, timeout=5)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    return finished_s, killed_s


def kills(count: int) -> bool:
    """Kills a gateway `count` times; each time what a client had been answered is looked for in the store."""
    chance, held, lost_s, answered = random.Random(11), True, [], 0
    with tempfile.TemporaryDirectory() as name, fake_worker(Path(name)) as socket:
        folder = Path(name)
        for number in range(count):
            state = folder / f"state-{number}"
            with gateway(folder, socket, state) as (process, port):
                way = Endpoint("gateway", socket, port)
                finished_s, killed_s = uvloop.run(finished_until_killed(way, process, chance.uniform(0.2, 2.5)))
            store = RunStore.open(state)
            runs = store.runs()
            kept = len(store.requests(runs[0], limit=10**7)) if runs else 0
            missing = sorted(finished_s)[kept:]
            lost_s.append(killed_s - missing[0] if missing else 0.0)
            answered += len(finished_s)
            with contextlib.closing(sqlite3.connect(state / FILE_NAME)) as file:
                is_whole = file.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            counted = runs[0].num_requests == kept if runs else True
            held = held and is_whole and counted and lost_s[-1] < TARGET_LOSS_S
    print(f"{count} kills, {answered:,} requests answered before them; every store opened and was whole: {held}")
    print(
        f"  the oldest answered request that was lost was answered before the kill by: median "
        f"{statistics.median(lost_s):.2f} s, at most {max(lost_s):.2f} s   target < {TARGET_LOSS_S}"
    )
    return held


def cost(num_streams: int, rounds: int) -> bool:
    """CPU of the gateway a chunk, and chunks a second, with and without the store; then of answers of one event."""
    with tempfile.TemporaryDirectory() as name, fake_worker(Path(name)) as socket, contextlib.ExitStack() as running:
        folder = Path(name)
        sides = {
            "without": running.enter_context(gateway(folder, socket, None)),
            "with": running.enter_context(gateway(folder, socket, folder / "state")),
        }
        ratios, shares = [], []
        for index in range(rounds):
            figures: dict[str, tuple[float, float]] = {}
            for side in sides if index % 2 == 0 else reversed(sides):
                process, port = sides[side]
                before = process.cpu_times()
                rate = uvloop.run(tokens_per_s(Endpoint(side, socket, port), num_streams, 100.0, 4.0))
                after = process.cpu_times()
                figures[side] = rate, after.user + after.system - before.user - before.system
            ratios.append(figures["with"][0] / figures["without"][0])
            shares.append(figures["with"][1] / figures["without"][1] - 1)
            rates = "   ".join(f"{side} {figures[side][0]:8.0f}" for side in sides)
            print(f"  {rates}   ratio {ratios[-1]:.4f}   CPU {100 * shares[-1]:+.1f} %")
    ratio = statistics.median(ratios)
    print(
        f"{num_streams} streams × 100 chunks/s: throughput {100 * (ratio - 1):+.2f} %, gateway's CPU "
        f"{100 * statistics.median(shares):+.1f} % (medians)   target ≥ -{100 * TARGET_COST:g} %"
    )
    return ratio >= 1 - TARGET_COST


def main() -> None:
    """Reads the flags; with --serve the same file is the gateway's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    for name in ("serve", "port-file", "state"):
        parser.add_argument(f"--{name}", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--key", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.key, arguments.port_file, arguments.state)
    elif arguments.kills:
        sys.exit(0 if kills(arguments.kills) else 1)
    elif arguments.cost:
        sys.exit(0 if cost(arguments.streams, arguments.rounds) else 1)
    else:
        sys.exit(0 if million(arguments.requests) else 1)


if __name__ == "__main__":
    main()
