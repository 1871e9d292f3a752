"""One client attacks, another streams: how long is the longest gap in the honest stream?

    python bench/attack.py [--qserve PATH] [--only NAME …] [--output attacks.json]

Starts `qserve up --model demo --reward demo` anew for each attack (PATH: of another checkout, for before and after),
streams from it without a pause in a process of its own, and then attacks as a client with another key. Each attack
is one function of `bench/attacks/`; its docstring says what it does. Figures are by the clock on the wall: run before
and after in turns on a quiet machine. Prints a table as Markdown.

    rounds       how often it was attacked; each time after as long a calm
    gap calm     the longest time between two events of the honest stream in a calm: the median of the rounds
    gap          the same from the first request of an attack until a second after its last answer
    worst calm   the longest gap of all calms: what the machine does by itself
    worst        the longest gap of all rounds
    MiB          what the processes of the service have taken in a round beyond what they had before: the most, by PSS
    broken       honest streams that did not end as they should
    honest       what else is measured beside it; see the attack
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import aiohttp
import psutil
from attacks import ATTACKS
from attacks.machine import hostile_folder, slow_heads, stopped_worker
from attacks.memory import MemoryWatch
from attacks.service import CHAT, Service, chat
from streams import KEY, ended, wait_for

_CALM_S = 4.0
_AFTER_S = 1.0
# One round of a slow attack is enough; quick ones are repeated, so that what else the machine does evens out.
_MAX_ROUNDS, _ENOUGH_S = 7, 40.0
_ATTACKERS_KEY = "attacker-" + KEY
_HERE = Path(__file__).absolute().parent


@dataclass(frozen=True)
class Result:
    """See the module."""

    attack: str
    num_rounds: int
    gap_calm_s: float
    worst_calm_s: float
    gap_s: float
    worst_gap_s: float
    most_mib: int
    num_broken: int
    honest: str


@contextmanager
def _service(qserve: Path, folder: Path, num_descriptors: int | None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    ready = folder / "ready.json"
    command = [
        str(qserve),
        "up",
        "--model",
        "demo",
        "--reward",
        "demo",
        "--port",
        "0",
        "--no-ui",
        "--state-dir",
        str(folder),
        "--ready-file",
        str(ready),
        "--api-key",
        KEY,
        "--api-key",
        _ATTACKERS_KEY,
    ]
    if num_descriptors is not None:
        command = ["prlimit", f"--nofile={num_descriptors}:{num_descriptors}", *command]
    with ended(command, folder / "up.log") as process:
        wait_for(ready.exists, process)
        if num_descriptors is not None:
            process.args = command[2:]
        yield json.loads(ready.read_text())["url"], process


@contextmanager
def _honest_stream(url: str, folder: Path) -> Iterator[Callable[[], list[tuple[float, str]]]]:
    """Streams without a pause in a process of its own; what it noted so far: (monotonic time, what came)."""
    notes = folder / "honest.log"
    with notes.open("wb") as file:
        process = subprocess.Popen([sys.executable, str(_HERE / "attack.py"), "--stream", url, KEY], stdout=file)
    try:
        yield lambda: [(float(at), what) for at, _, what in map(_parted, notes.read_text().splitlines())]
    finally:
        process.kill()
        process.wait()


def _parted(line: str) -> tuple[str, str, str]:
    return line.partition(" ")


async def _stream_for_ever(url: str, key: str) -> None:
    """The honest client. A line for each piece that comes, and for each stream that broke."""
    body = chat("tell me", stream=True, ignore_eos=True) | {"max_tokens": 400}
    async with aiohttp.ClientSession(headers={"authorization": f"Bearer {key}"}) as http:
        while True:
            what = "broken"
            with suppress(aiohttp.ClientError, OSError):
                async with http.post(url + CHAT, json=body) as answer:
                    last = b""
                    async for piece in answer.content.iter_any():
                        last = piece
                        if answer.status == 200:
                            print(time.monotonic(), "piece", flush=True)
                    what = "end" if answer.status == 200 and last.endswith(b"[DONE]\n\n") else "broken"
            if what == "broken":
                print(time.monotonic(), "broken", flush=True)
                await asyncio.sleep(0.2)


async def _measure(name: str, qserve: Path) -> Result:
    os.chdir(tempfile.gettempdir())  # workers are `python -m …`: they must not find this checkout before their own
    num_descriptors = 64 if ATTACKS[name] is slow_heads else None
    with (
        tempfile.TemporaryDirectory(prefix="qserve-attack-") as place,
        _service(qserve, Path(place), num_descriptors) as (url, process),
        _honest_stream(url, Path(place)) as notes,
        MemoryWatch(process.pid) as memory,
    ):
        await asyncio.sleep(3)
        calms: list[tuple[float, float]] = []
        attacked: list[tuple[float, float]] = []
        async with aiohttp.ClientSession(
            headers={"authorization": f"Bearer {_ATTACKERS_KEY}"}, timeout=aiohttp.ClientTimeout(total=None)
        ) as http:
            service, first_s = Service(url, process, http, KEY), time.monotonic()
            while len(attacked) < _rounds(name) and time.monotonic() - first_s < _ENOUGH_S:
                calm_s = time.monotonic()
                await asyncio.sleep(_CALM_S)
                began_s = time.monotonic()
                memory.begin()
                honest = await ATTACKS[name](service)
                await asyncio.sleep(_AFTER_S)
                calms.append((calm_s, began_s))
                attacked.append((began_s, time.monotonic()))
        seen = notes()
        with suppress(psutil.Error):  # or it can't drain
            for child in psutil.Process(process.pid).children(recursive=True):
                child.send_signal(signal.SIGCONT)
    gaps = [_gap(seen, *window) for window in attacked]
    calm_gaps = [_gap(seen, *window) for window in calms]
    return Result(
        attack=name,
        num_rounds=len(attacked),
        gap_calm_s=round(median(calm_gaps), 3),
        worst_calm_s=round(max(calm_gaps), 3),
        gap_s=round(median(gaps), 3),
        worst_gap_s=round(max(gaps), 3),
        most_mib=memory.most_mib,
        num_broken=sum(what == "broken" for at, what in seen if at >= attacked[0][0]),
        honest=f"{honest}; killed at {memory.limit_mib} MiB" if memory.has_killed else honest,
    )


def _rounds(name: str) -> int:
    return 1 if ATTACKS[name] in (slow_heads, stopped_worker, hostile_folder) else _MAX_ROUNDS


def _gap(seen: list[tuple[float, str]], since_s: float, until_s: float) -> float:
    """The longest time without a piece."""
    pieces = [at for at, what in seen if what == "piece" and since_s <= at <= until_s]
    marks = [since_s, *pieces, until_s]
    return max(after - before for before, after in pairwise(marks))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--qserve", type=lambda text: Path(text).absolute(), default=Path(sys.executable).parent / "qserve"
    )
    parser.add_argument("--only", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--output", type=lambda text: Path(text).absolute())
    parser.add_argument("--stream", nargs=2, metavar=("URL", "KEY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stream:
        asyncio.run(_stream_for_ever(*args.stream))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the service would outlive `timeout`
    results = []
    print(
        "| attack | rounds | gap calm s | worst calm s | gap s | worst s | MiB | broken | honest |\n"
        + "|---" * 9
        + "|",
        flush=True,
    )
    for name in args.only:
        one = asyncio.run(_measure(name, args.qserve))
        results.append(one)
        words = re.sub("_", " ", one.attack)
        gaps = f"{one.gap_calm_s:.3f} | {one.worst_calm_s:.3f} | {one.gap_s:.3f} | {one.worst_gap_s:.3f}"
        print(f"| {words} | {one.num_rounds} | {gaps} | {one.most_mib} | {one.num_broken} | {one.honest} |", flush=True)
    if args.output is not None:
        args.output.write_text(json.dumps([asdict(one) for one in results]))


if __name__ == "__main__":
    main()
