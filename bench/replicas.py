"""Replicas behind one port: what kills cost, what prefix affinity keeps, and how throughput grows with their number.

    python bench/replicas.py failover [--minutes 2] [--kill-every-s 5] [--streams 64]     3 real demo replicas
    python bench/replicas.py restart                        a rolling restart of 3 under 16 clients: nothing is lost
    python bench/replicas.py affinity [--model demo]       40 conversations of 6 turns: 1 replica, 3, 3 by round robin
    python bench/random_checkpoint.py --shape qwen3-0.6b --out /tmp/random-0.6b          a shape of its size, and then
    python bench/replicas.py affinity --model /tmp/random-0.6b --repeat 3     shorter turns: its tokens are bytes
    python bench/replicas.py linear                        fake workers of known latency, 1 to 8 of them

failover: every stream is greedy and in float32, and no two requests are the same bytes. The replica that has served
longest is killed; where none is ready, which is usual where a start takes longer than the pause between kills, requests
wait. One that had not begun must not fail (the second replica that dies under it ends it with 422, as documented: those
are told apart), a stream on the killed replica must end with an error within 0.5 s of the kill, every other one must be
byte-equal to its undisturbed answer.
affinity: prompt tokens that the engine found in its KV cache; round robin asks each replica by the port of a service of
its own. linear: requests a second over those of one worker. Exit status 1 where one of these is missed. These processes
share the machine with the load: compare ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop
from streams import KEY, ended, wait_for

_QSERVE = Path(sys.executable).with_name("qserve")
_FAKE_WORKER = Path(__file__).with_name("fake_worker.py")
_LATEST_END_S = 0.5
_TWO_DEATHS = "not begun: 422 request_ended_workers"
_LEAST_KEPT = 0.9
_LINEAR = 0.03
_MODEL = "talk"


@dataclass
class Service:
    """A running `qserve up`, and what started it."""

    url: str
    process: subprocess.Popen[bytes]
    folder: Path
    command: Sequence[str]

    def take_over(self) -> None:
        """Have a new one take its port and its workers."""
        port = self.url.rpartition(":")[2]
        ready = self.folder / f"ready-after-{self.process.pid}.json"
        places = {"--port": port, "--ready-file": str(ready)}
        before = [None, *self.command]
        command = [places.get(str(name), word) for name, word in zip(before, self.command, strict=False)]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([*command, "--takeover"], stdout=log, stderr=log)
        wait_for(ready.exists, process)
        self.process.wait(120)
        self.process = process

    def replica(self, name: str) -> psutil.Process | None:
        """The process of a worker; None while it is being restarted."""
        for one in psutil.Process(self.process.pid).children():
            try:
                if any(word.endswith(f"/{name}.json") for word in one.cmdline()):
                    return one
            except psutil.Error:
                continue
        return None


@contextmanager
def served(*arguments: str, on: Path | None = None) -> Iterator[Service]:
    """`qserve up` with these arguments, on a free port, in a folder of its own, below `on` where that is given."""
    with tempfile.TemporaryDirectory(prefix="qserve-bench-", dir=on) as folder:
        ready = Path(folder) / "ready.json"
        command = [str(_QSERVE), "up", *arguments, "--port", "0", "--no-ui", "--state-dir", folder, "--no-learn"]
        command += ["--ready-file", str(ready)]
        with ended(command, Path(folder) / "log") as process:
            wait_for(ready.exists, process)
            service = Service(json.loads(ready.read_text())["url"], process, Path(folder), command)
            try:
                yield service
            finally:
                service.process.terminate()
                service.process.wait(60)


# ---- failover


@dataclass
class Kills:
    """Replicas that were killed, and when; and what became of the streams."""

    at_s: list[tuple[float, str]] = field(default_factory=list)
    num_skipped: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    ends_s: list[float] = field(default_factory=list)


async def failover(minutes: float, kill_every_s: float, num_streams: int) -> bool:
    """Prints what happened; whether all promises were kept."""
    arguments = ("--model", "demo", "--dtype", "float32", "--replicas", "3", "--max-num-seqs", "8")
    questions = [f"What is {at}+{2 * at + 1}?" for at in range(num_streams)]
    with served(*arguments) as service:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(service.url, connector=connector) as http:
            undisturbed = await asyncio.gather(*(_streamed(http, one, "undisturbed") for one in questions))
            if bad := [error for _, error in undisturbed if error]:
                raise SystemExit(f"{len(bad)} streams failed before the first kill: {bad[0]}")
            expected = dict(zip(questions, (words for words, _ in undisturbed), strict=True))
            kills, until_s = Kills(), time.monotonic() + minutes * 60
            asking = [_ask_on(http, one, expected[one], kills, until_s) for one in questions]
            await asyncio.gather(_kill_on(http, service, kills, kill_every_s, until_s), *asking)
    print(
        f"{len(kills.at_s)} kills in {minutes:g} min under {num_streams} streams "
        f"({kills.num_skipped} times none was ready to be killed):"
    )
    for outcome, count in sorted(kills.outcomes.items()):
        print(f"  {outcome:<34} {count:>7,}")
    if kills.ends_s:
        ends_s = sorted(kills.ends_s)
        print(f"  ends after a kill      {ends_s[len(ends_s) // 2]:.3f} s p50, {ends_s[-1]:.3f} s at most")
    wrong = kills.outcomes.keys() - {"equal", "worker_died", _TWO_DEATHS}
    return not wrong and bool(kills.outcomes["equal"]) and max(kills.ends_s, default=0.0) <= _LATEST_END_S


async def _kill_on(http: aiohttp.ClientSession, service: Service, kills: Kills, every_s: float, until_s: float) -> None:
    """Kills the replica that has served longest, or nobody."""
    while time.monotonic() + every_s < until_s:
        await asyncio.sleep(every_s)
        async with http.get("/ready") as response:
            ready = [one["name"] for one in (await response.json())["workers"] if one["state"] == "ready"]
        killed = [name for _, name in kills.at_s]
        ready.sort(key=lambda name: len(killed) - killed[::-1].index(name) if name in killed else 0)
        worker = service.replica(ready[0]) if ready else None
        if worker is None:
            kills.num_skipped += 1
            continue
        kills.at_s.append((time.monotonic(), ready[0]))
        worker.kill()


async def _ask_on(http: aiohttp.ClientSession, question: str, expected: str, kills: Kills, until_s: float) -> None:
    turn = 0
    while time.monotonic() < until_s:
        turn += 1
        try:
            text, error = await _streamed(http, question, str(turn))
        except (aiohttp.ClientError, TimeoutError) as failure:
            kills.outcomes[type(failure).__name__] += 1
            continue
        if not error:
            kills.outcomes["equal" if text == expected else "different"] += 1
        elif error[0].isdigit():  # a status: no byte of a stream
            kills.outcomes[f"not begun: {error}"] += 1
        else:
            ends = time.monotonic() - kills.at_s[-1][0] if kills.at_s else float("inf")
            kills.ends_s.append(ends)
            kills.outcomes[error if expected.startswith(text) else f"{error}, wrong words"] += 1


async def _streamed(http: aiohttp.ClientSession, question: str, turn: str) -> tuple[str, str]:
    """Its words, and the code of the error that it ended with. `turn` makes it a request that nobody sent before."""
    body = {
        "model": "demo",
        "stream": True,
        "temperature": 0,
        "max_tokens": 32,
        "ignore_eos": True,
        "user": f"{question} {turn}",
        "messages": [{"role": "user", "content": question}],
    }
    words = error = ""
    async with http.post("/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=300)) as response:
        if response.status != 200:
            return "", f"{response.status} {(await response.json())['error']['code']}"
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                error = event["error"]["code"] if "error" in event else error
                words += "".join(one["delta"].get("content") or "" for one in event.get("choices", ()))
    return words, error


# ---- restart


async def restart(num_clients: int = 16) -> bool:
    """Prints how many were answered while all replicas were restarted in turn; whether all were."""
    answered: Counter[int] = Counter()
    with served("--model", "demo", "--replicas", "3") as service:
        async with aiohttp.ClientSession(service.url) as http:
            began_s, done = time.monotonic(), asyncio.Event()

            async def ask(client: int) -> None:
                body = {"model": "demo", "max_tokens": 32, "messages": [{"role": "user", "content": f"{client}+1?"}]}
                while not done.is_set():
                    async with http.post("/v1/chat/completions", json=body) as response:
                        await response.read()
                        answered[response.status] += 1

            asking = [asyncio.create_task(ask(client)) for client in range(num_clients)]
            service.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(300):
                while not await _all_restarted(http):
                    await asyncio.sleep(0.2)
            done.set()
            await asyncio.gather(*asking)
            took_s = time.monotonic() - began_s
    print(
        f"3 replicas restarted in turn in {took_s:.1f} s under {num_clients} clients; "
        f"answers by status: {dict(answered)}"
    )
    return answered.keys() == {200}


async def _all_restarted(http: aiohttp.ClientSession) -> bool:
    async with http.get("/v1/qserve/report") as response:
        workers = (await response.json())["data"]
    return all(one["num_restarts"] and one["state"] == "ready" for one in workers)


# ---- affinity


async def affinity(model: str, conversations: int, turns: int, repeat: int) -> bool:
    """Prints cached prompt tokens, TTFT and tokens a second; whether enough were kept."""
    rows, model_flags = {}, ("--model", model, "--served-model-name", _MODEL)
    with served(*model_flags, "--replicas", "1") as one:
        rows["1 replica"] = await _talk([one.url], conversations, turns, repeat)
    with served(*model_flags, "--replicas", "3") as three:
        rows["3, prefix affinity"] = await _talk([three.url], conversations, turns, repeat)
    with ExitStack() as stack:
        os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // 3))  # as replicas share the cores
        urls = [stack.enter_context(served(*model_flags)).url for _ in range(3)]
        rows["3, round robin"] = await _talk(urls, conversations, turns, repeat)
    alone = rows["1 replica"].cached
    print(f"{conversations} conversations of {turns} turns with {model}:")
    for name, row in rows.items():
        share = f"{row.cached / alone:6.1%}" if alone else "     -"
        print(
            f"  {name:<20} {row.cached:>9,} of {row.prompt:>9,} prompt tokens cached ({share} of one replica's), "
            f"TTFT {row.ttft_ms:7.1f} ms mean, {row.tokens_per_s:6.1f} tokens/s"
        )
    return rows["3, prefix affinity"].cached >= _LEAST_KEPT * alone > 0


@dataclass(frozen=True)
class Talk:
    """What a set of conversations came to."""

    prompt: int
    cached: int
    ttft_ms: float
    tokens_per_s: float


async def _talk(urls: Sequence[str], conversations: int, turns: int, repeat: int) -> Talk:
    async with AsyncExitStack() as stack:
        https = [await stack.enter_async_context(aiohttp.ClientSession(url)) for url in urls]
        before, began_s = [await _counters(http) for http in https], time.monotonic()
        ttfts = await asyncio.gather(*(_conversation(https, person, turns, repeat) for person in range(conversations)))
        duration_s = time.monotonic() - began_s
        after = [await _counters(http) for http in https]
    sums = {name: sum(one[name] for one in after) - sum(one[name] for one in before) for name in after[0]}
    times = [one for each in ttfts for one in each]
    return Talk(
        int(sums["prompt"]), int(sums["cached"]), 1000 * sum(times) / len(times), sums["generated"] / duration_s
    )


async def _conversation(https: Sequence[aiohttp.ClientSession], person: int, turns: int, repeat: int) -> list[float]:
    """Every turn repeats all before it; of several services each is asked in its turn."""
    messages: list[dict[str, str]] = [{"role": "system", "content": "You add numbers and say nothing else. " * 8}]
    times = []
    await asyncio.sleep(0.05 * person)
    for turn in range(turns):
        content = f"Person {person} asks in turn {turn}: " + f"what is {person}+{turn}? " * repeat
        messages.append({"role": "user", "content": content})
        body = {"model": _MODEL, "messages": messages, "max_tokens": 24, "temperature": 0, "stream": True}
        began_s, words = time.monotonic(), ""
        http = https[(person + turn) % len(https)]
        async with http.post("/v1/chat/completions", json=body, timeout=aiohttp.ClientTimeout(total=3600)) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    found = "".join(
                        one["delta"].get("content") or "" for one in json.loads(line[6:]).get("choices", ())
                    )
                    if found and not words:
                        times.append(time.monotonic() - began_s)
                    words += found
        messages.append({"role": "assistant", "content": words})
    return times


async def _counters(http: aiohttp.ClientSession) -> dict[str, float]:
    names = {"prompt": "prompt_tokens", "cached": "cached_prompt_tokens", "generated": "generated_tokens"}
    async with http.get("/metrics") as response:
        lines = (await response.text()).splitlines()
    return {
        key: sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"qserve_worker_{name}_total"))
        for key, name in names.items()
    }


# ---- linear


async def linear() -> bool:
    """Prints requests a second for 1 to 8 fake workers; whether they grow with the number."""
    rates = {}
    with tempfile.TemporaryDirectory(prefix="qserve-fake-") as folder, ExitStack() as stack:
        sockets = [Path(folder) / f"{at}.sock" for at in range(8)]
        for socket in sockets:
            command = [sys.executable, str(_FAKE_WORKER), "--socket", str(socket), "--key", KEY]
            wait_for(socket.exists, stack.enter_context(ended(command)))
        for count in (1, 2, 4, 8):
            rates[count] = await _rate_of(sockets[:count])
    print("fake workers of 8 places and 1 s a request:")
    for count, rate in rates.items():
        print(f"  {count} replicas: {rate:7.1f} requests/s, {rate / (count * rates[1]):6.1%} of linear")
    return all(rate >= (1 - _LINEAR) * count * rates[1] for count, rate in rates.items())


_PLACES, _REQUEST_MS, _ROUNDS = 8, 1000, 8


async def _rate_of(sockets: Sequence[Path]) -> float:
    """Every place taken all the time, one client for each."""
    from qserve.gateway.app import build_gateway
    from qserve.gateway.http.server import build_server
    from qserve.gateway.settings import GatewaySettings
    from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus

    workers = [
        WorkerStatus(
            WorkerFacts(f"chat-{at}", ("fake",), UnixAddress(socket), KEY, _PLACES, 4096, role="chat"),
            WorkerState.READY,
        )
        for at, socket in enumerate(sockets)
    ]
    server = build_server(build_gateway(GatewaySettings(), workers), "127.0.0.1", 0, drain_timeout_s=1)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as http:

        async def ask(client: int) -> None:
            for turn in range(_ROUNDS):
                await _fake(http, f"{client} {turn}")

        clients = _PLACES * len(sockets)
        await asyncio.gather(*(_fake(http, f"warm {at}") for at in range(clients)))
        began_s = time.monotonic()
        await asyncio.gather(*(ask(client) for client in range(clients)))
        rate = clients * _ROUNDS / (time.monotonic() - began_s)
    server.should_exit = True
    await serving
    return rate


async def _fake(http: aiohttp.ClientSession, text: str) -> None:
    body: dict[str, Any] = {
        "model": "fake",
        "stream": False,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 4,
        "metadata": {"chunks": "4", "ttft_ms": str(_REQUEST_MS)},
    }
    async with http.post("/v1/chat/completions", json=body) as response:
        response.raise_for_status()
        await response.read()


def main() -> None:
    """Runs one part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    kills = parts.add_parser("failover")
    kills.add_argument("--minutes", type=float, default=2.0)
    kills.add_argument("--kill-every-s", type=float, default=5.0)
    kills.add_argument("--streams", type=int, default=64)
    talks = parts.add_parser("affinity")
    talks.add_argument("--model", default="demo")
    talks.add_argument("--conversations", type=int, default=40)
    talks.add_argument("--turns", type=int, default=6)
    talks.add_argument("--repeat", type=int, default=12, help="of a question in a turn: how long turns are")
    parts.add_parser("restart")
    parts.add_parser("linear")
    given = parser.parse_args()
    if given.part == "failover":
        kept = asyncio.run(failover(given.minutes, given.kill_every_s, given.streams))
    elif given.part == "affinity":
        kept = asyncio.run(affinity(given.model, given.conversations, given.turns, given.repeat))
    elif given.part == "restart":
        kept = asyncio.run(restart())
    else:
        kept = uvloop.run(linear())
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
