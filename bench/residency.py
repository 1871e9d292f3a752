"""Models that take turns in a memory cgroup, as on a card: hand-overs under load, planned memory beside measured.

    python bench/residency.py --hand-overs 200 --json turns.json      # three demo models, one fits at a time
    python bench/residency.py --shape qwen3-0.6b --hand-overs 40      # a made checkpoint of that shape, and two demos
    python bench/residency.py --page docs/results/residency.md *.json # writes the results there

Clients ask three models, another one every three seconds, and some ask whichever they like, so that requests wait for
models all the time. Each answer is held against the one that the model gave when it was alone. The memory is that of
all processes of the service in their cgroup without page cache, 20 times a second. Exit status 1 where an answer was
lost or differs, where two models loaded at once, or where the kernel ended a process. Needs root, for the cgroup.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from random_checkpoint import write_checkpoint
from servers import free_port

from qserve.planner.memory.host import GATEWAY
from qserve.units import MIB, format_bytes

_QSERVE = str(Path(sys.executable).with_name("qserve"))
_CGROUPS = Path("/sys/fs/cgroup")
_SLOT_S, _LOOK_S, _LEAST_COLD_S = 3.0, 0.05, 0.3
_ASKED = ("What is 12+30?", "What is 7+5?", "What is 40+2?")
_BEGIN, _END = "<!-- rows: written by bench/residency.py --page -->", "<!-- end of rows -->"


@dataclass
class Result:
    """Of one run. Bytes without page cache; `cold_s`: until the first token, of requests whose model had to load."""

    models: list[str]
    limit_bytes: int
    num_hand_overs: int = 0
    num_answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    num_different: int = 0
    most_at_once: int = 0
    planned_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    num_oom_kills: int = 0
    cold_s: list[float] = field(default_factory=list)
    load_s: dict[str, float] = field(default_factory=dict)
    minutes: float = 0.0

    @property
    def is_well(self) -> bool:
        return not (self.errors or self.num_different or self.num_oom_kills) and self.most_at_once <= 1

    def row(self) -> str:
        """A row of the page."""
        off = self.measured_peak_bytes / self.planned_peak_bytes - 1
        failed = ", ".join(f"{count} {name}" for name, count in self.errors.items()) or "0"
        loads = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.load_s.items())
        cold = sorted(self.cold_s)
        return (
            f"| {', '.join(self.models)} | {self.num_hand_overs} in {self.minutes:.0f} min | {self.num_answers} "
            f"| {failed} | {self.num_different} | {self.most_at_once} | {self.num_oom_kills} "
            f"| {format_bytes(self.planned_peak_bytes)} | {format_bytes(self.measured_peak_bytes)} ({off:+.1%}) "
            f"| {median(cold):.1f} s, {cold[int(0.99 * (len(cold) - 1))]:.1f} s | {loads} |"
        )


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup of v1 or v2 with this limit."""
    parent = _CGROUPS / "memory" if (_CGROUPS / "memory/memory.limit_in_bytes").exists() else _CGROUPS
    folder = parent / f"qserve-bench-{os.getpid()}"
    folder.mkdir()
    limit = folder / ("memory.limit_in_bytes" if _is_v1(folder) else "memory.max")
    limit.write_text(str(limit_bytes))
    try:
        yield folder
    finally:
        for _ in range(200):
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.05)


def _is_v1(folder: Path) -> bool:
    return (folder / "memory.limit_in_bytes").exists()


def held_bytes(folder: Path) -> int:
    """Anonymous and shared memory of all processes in it."""
    names = ("total_rss", "total_shmem") if _is_v1(folder) else ("anon", "shmem")
    lines = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    return sum(int(lines.get(name, 0)) for name in names)


def oom_kills(folder: Path) -> int:
    """Processes that the kernel ended."""
    text = (folder / ("memory.oom_control" if _is_v1(folder) else "memory.events")).read_text()
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def service_file(folder: Path, args: argparse.Namespace) -> Path:
    """Three models; only one fits at a time."""
    first: dict[str, Any] = {"model": "demo", "served_model_name": ["a"], "dtype": "float32"}
    if args.shape:
        made = write_checkpoint(folder / args.shape, args.shape)
        first = {"model": str(made), "served_model_name": ["a"], "max_model_len": 1024, "max_num_seqs": 4}
    others = [{"model": "demo", "served_model_name": [name], "dtype": "float32"} for name in ("b", "c")]
    entries = [{"max_model_len": 512, "max_num_seqs": 8, **one} for one in (first, *others)]
    settings = {
        "models": entries,
        "residency": {"window": "1s", "memory": args.memory},
        "ui": False,
        "gateway_processes": args.gateways,
        "port": free_port(),
    }
    file = folder / "models.yaml"
    file.write_text(json.dumps(settings))
    return file


class Clients:
    """Ask the models, in turns and at random, and compare."""

    def __init__(self, http: aiohttp.ClientSession, names: Sequence[str], result: Result) -> None:
        self._http, self._names, self._result = http, names, result
        self._expected: dict[tuple[str, str], str] = {}
        self._is_over = False

    async def learn(self) -> None:
        """What each model says."""
        for name in self._names:
            for question in _ASKED:
                self._expected[name, question], _ = await self._ask(name, question)

    async def run(self, num_clients: int) -> None:
        """Until `end`."""
        await asyncio.gather(*(self._client(number) for number in range(num_clients)))

    def end(self) -> None:
        self._is_over = True

    async def _client(self, number: int) -> None:
        chosen = random.Random(number)
        while not self._is_over:
            in_turn = self._names[int(time.monotonic() / _SLOT_S) % len(self._names)]
            name = in_turn if number % 3 else chosen.choice(self._names)
            question = chosen.choice(_ASKED)
            try:
                said, first_s = await self._ask(name, question)
            except (aiohttp.ClientError, ValueError, TimeoutError) as error:
                self._result.errors[str(error)[:80]] += 1
                continue
            self._result.num_answers += 1
            self._result.num_different += said != self._expected[name, question]
            if first_s > _LEAST_COLD_S:
                self._result.cold_s.append(first_s)
            await asyncio.sleep(0.2)

    async def _ask(self, name: str, question: str) -> tuple[str, float]:
        """The text of a stream, and the seconds until its first token. Raises ValueError for an error."""
        body = {
            "model": name,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
        }
        said, first_s, began_s, is_done = "", 0.0, time.monotonic(), False
        async with self._http.post("/v1/chat/completions", json=body) as reply:
            if reply.status != 200:
                raise ValueError((await reply.json())["error"]["code"])
            async for line in reply.content:
                is_done = is_done or line.startswith(b"data: [DONE]")
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(event["error"]["code"])
                first_s = first_s or time.monotonic() - began_s
                said += "".join(one["delta"].get("content") or "" for one in event["choices"])
        if not is_done:
            raise ValueError("cut off")
        return said, first_s


async def watch(folder: Path, http: aiohttp.ClientSession, result: Result, hand_overs: int) -> None:
    """Memory, and how many models load at once, until there were so many loads."""
    looked_s = 0.0
    while result.num_hand_overs < hand_overs:
        await asyncio.sleep(_LOOK_S)
        result.measured_peak_bytes = max(result.measured_peak_bytes, held_bytes(folder))
        if time.monotonic() - looked_s < 4 * _LOOK_S:
            continue
        looked_s = time.monotonic()
        async with http.get("/v1/qserve/models") as reply:
            rows = (await reply.json())["data"]
        there = sum(row["state"] != "idle" for row in rows)
        result.most_at_once = max(result.most_at_once, there)
        result.num_hand_overs = sum(row["num_loads"] for row in rows) - 1
        result.load_s |= {row["name"]: row["load_s"] for row in rows if row["load_s"]}


def planned_peak(file: Path, state: Path) -> int:
    """By `qserve plan`: the gateway, the process that stands by, and the model that takes most while it starts."""
    told = subprocess.run(
        [_QSERVE, "plan", "--config", str(file), "--json", "--state-dir", str(state)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    plan = json.loads(told.stdout)
    models = [sum(one["rest_bytes"].values()) + sum(one["starting_bytes"].values()) for one in plan["models"]]
    return GATEWAY.num_bytes + int(plan["standby_bytes"]) + max(models)


async def run(args: argparse.Namespace) -> Result:
    """One service from its start to its end."""
    with tempfile.TemporaryDirectory(prefix="qserve-residency-") as folder, cgroup(args.limit_mib * MIB) as group:
        file, state = service_file(Path(folder), args), Path(folder) / "state"
        settings = json.loads(file.read_text())
        names = [one["served_model_name"][0] for one in settings["models"]]
        title = [args.shape or "demo", "demo", "demo"]
        result = Result(title, args.limit_mib * MIB, planned_peak_bytes=planned_peak(file, state))
        command = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        words = [_QSERVE, "up", "--config", str(file), "--state-dir", str(state), "--min-free-ram", "0"]
        service = subprocess.Popen(["/bin/sh", "-c", command, "sh", *words], stdout=subprocess.DEVNULL)
        began_s = time.monotonic()
        try:
            timeout = aiohttp.ClientTimeout(total=300)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{settings['port']}", timeout=timeout) as http:
                await _until_ready(http, service)
                clients = Clients(http, names, result)
                await clients.learn()
                asking = asyncio.create_task(clients.run(args.clients))
                await watch(group, http, result, args.hand_overs)
                clients.end()
                await asking
        finally:
            service.send_signal(signal.SIGINT)
            service.wait(60)
        result.minutes = (time.monotonic() - began_s) / 60
        result.num_oom_kills = oom_kills(group)
        return result


async def _until_ready(http: aiohttp.ClientSession, service: subprocess.Popen[bytes]) -> None:
    while service.poll() is None:
        await asyncio.sleep(0.2)
        try:
            async with http.get("/ready") as reply:
                if reply.status == 200:
                    return
        except aiohttp.ClientError:
            continue
    raise SystemExit(f"qserve up ended with {service.returncode}")


def write_page(page: Path, files: Sequence[Path]) -> None:
    """The rows of all files, between the marks of the page."""
    results = [Result(**{**one, "errors": Counter(one["errors"])}) for one in map(_read, files)]
    text = page.read_text()
    before, after = text[: text.index(_BEGIN)], text[text.index(_END) :]
    head = (
        "| models | hand-overs | answers | failed | differ | in memory at once | ended by the kernel | planned peak "
        "| measured | first token after a load, median and p99 | load |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    rows = "\n".join(one.row() for one in results)
    when = f"{date.today():%Y-%m-%d}, {platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    page.write_text(f"{before}{_BEGIN}\n\nMeasured {when}.\n\n{head}\n{rows}\n\n{after}")


def _read(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(file.read_text())
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hand-overs", type=int, default=200)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--shape", help="of the first model, as bench/random_checkpoint.py has it [the demo]")
    parser.add_argument("--memory", default="1000MiB", help="what the models may take together")
    parser.add_argument("--limit-mib", type=int, default=1400, help="of the cgroup")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("files", nargs="*", type=Path)
    args = parser.parse_args()
    if args.page is not None:
        write_page(args.page, args.files)
        return 0
    result = asyncio.run(run(args))
    sys.stdout.write(f"{result.row()}\n")
    if args.json is not None:
        args.json.write_text(json.dumps(asdict(result)))
    return 0 if result.is_well else 1


if __name__ == "__main__":
    sys.exit(main())
