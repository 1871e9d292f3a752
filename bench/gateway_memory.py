"""What makes the gateway's process grow: its memory by kind while a hundred thousand requests pass.

    python bench/gateway_memory.py [--requests 100000] [--clients 32] [--cache-kib 2048]

`qserve up --model demo --reward demo` without the UI; of ten requests one is a reward, the others are refused by the
gateway itself: all pass its whole length and are kept in the run store. Prints resident MiB by kind of mapping, and
SQLite's own count of what it holds. `--cache-kib` is another page cache of the store than the program's own: what
bench/soak.py does in half an hour shows here in two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import aiohttp
from streams import ended, wait_for

_NUM_LOOKS = 10
_HELD = "sqlite-held"
# In the gateway's process: SQLite tells what it holds to whoever asks in the same process.
_GATEWAY = """
import ctypes, pathlib, sys, threading, time
from qserve.runs import writer
file, cache_kib = pathlib.Path(sys.argv.pop(1)), int(sys.argv.pop(1))
writer._CACHE_KIB = cache_kib or writer._CACHE_KIB
def tell():
    libraries = [line.split()[-1] for line in open("/proc/self/maps") if "libsqlite3" in line]
    held = ctypes.CDLL(libraries[0]).sqlite3_memory_used
    held.restype = ctypes.c_int64
    while True:
        file.write_text(str(held()))
        time.sleep(0.2)
threading.Thread(target=tell, daemon=True).start()
from qserve.cli.main import main
main()
"""


def held_kib(pid: int) -> Counter[str]:
    """Resident KiB by kind of mapping: what is charged to this process alone or in part (PSS), and RSS."""
    held: Counter[str] = Counter()
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else ""
            kind = "heap" if name == "[heap]" else "files" if name.startswith("/") else "arenas, stacks"
        elif words[0] in ("Rss:", "Pss:"):
            held[f"{kind} {words[0][:-1].upper()}"] += int(words[1])
    return held


async def ask(http: aiohttp.ClientSession, url: str, number: int) -> None:
    """One of ten is a reward; the others name no model that is served."""
    is_reward = number % 10 == 0
    path = "/v1/reward" if is_reward else "/v1/chat/completions"
    reward = {"model": "demo-reward", "prompt": "a", "responses": ["b"]}
    refused = {"model": "nobody", "messages": [{"role": "user", "content": f"question {number}"}]}
    async with http.post(url + path, json=reward if is_reward else refused) as answer:
        await answer.read()
        assert answer.status == (200 if is_reward else 404), answer.status


async def asked(url: str, first: int, count: int, num_clients: int) -> None:
    """So many requests, by so many clients."""
    numbers = iter(range(first, first + count))

    async def client(http: aiohttp.ClientSession) -> None:
        for number in numbers:
            await ask(http, url, number)

    connector = aiohttp.TCPConnector(limit=num_clients)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as http:
        await asyncio.gather(*(client(http) for _ in range(num_clients)))


def row(num: int, pid: int, file: Path) -> str:
    """A line of the table."""
    held = held_kib(pid)
    rss, pss = (sum(kib for kind, kib in held.items() if kind.endswith(unit)) for unit in ("RSS", "PSS"))
    kinds = ("heap PSS", "arenas, stacks PSS", "files PSS", "files RSS")
    figures = [rss / 1024, pss / 1024, *(held[kind] / 1024 for kind in kinds), int(file.read_text()) / 2**20]
    return f"| {num:,} | " + " | ".join(f"{one:.1f}" for one in figures) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--cache-kib", type=int, default=0, help="0: the program's own")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="qserve-gateway-memory-") as name:
        folder = Path(name)
        ready, file = folder / "ready.json", folder / _HELD
        command = [
            sys.executable,
            "-c",
            _GATEWAY,
            str(file),
            str(args.cache_kib),
            "up",
            "--model",
            "demo",
            "--reward",
            "demo",
            "--served-reward-name",
            "demo-reward",
            "--no-ui",
            "--port",
            "0",
            "--state-dir",
            str(folder),
            "--ready-file",
            str(ready),
        ]
        os.environ["QSERVE_NO_LEARN"] = "1"
        with ended(command, folder / "up.log") as process:
            wait_for(lambda: ready.exists() and file.exists(), process)
            url = json.loads(ready.read_text())["url"]
            print("| requests | RSS MiB | PSS | heap | arenas, stacks | files | files, RSS | SQLite holds |")
            print("|---" * 8 + "|")
            print(row(0, process.pid, file), flush=True)
            each = args.requests // _NUM_LOOKS
            for look in range(_NUM_LOOKS):
                asyncio.run(asked(url, look * each, each, args.clients))
                print(row((look + 1) * each, process.pid, file), flush=True)


if __name__ == "__main__":
    main()
