"""A service under mixed load for a long time: does it grow, does it slow down, is anything lost?

    python bench/soak.py --minutes 30 [--clients 64] [--kill-every-s 120] [--output soak.json]
    python bench/soak.py --minutes 10 --kill-every-s 0      # no kills: does what each process holds stay flat?
    python bench/soak.py --minutes 10 --model qwen3-0.6b --reward qwen3-0.6b --clients 8   # random weights of a shape

Starts `qserve up --model demo --reward demo`, has clients of eight kinds ask it (bench/soak_clients.py), and kills the
chat or the reward worker by SIGKILL in turn. Every ten seconds it notes RSS, PSS, descriptors and threads of each
process, what the workers themselves say of their memory, and the latencies since. An answer is *lost* when it is not
whole, or wrong in status, and no kill explains it: only requests of the killed worker, that were in flight then or came
before it was ready again, may fail, and then with an error of the API. Prints tables as Markdown; exit status 1 where
anything was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from random_checkpoint import SHAPES, write_checkpoint
from reward import write_checkpoint as write_reward
from soak_clients import KINDS, Outcome, ask
from streams import ended, wait_for

_SAMPLE_S = 10.0
_MIB = 1 << 20
_ROLE_OF_MODULE = {
    "qserve.engines.transformers.worker": "chat",
    "qserve.reward": "reward",
    "qserve.engines.transformers.worker.prompts.process": "prompts",
    "qserve.gateway.large_bodies": "large bodies",
    "qserve.ui": "web UI",
}
# What an error may be while a worker is away.
_AWAY = frozenset({"worker_died", "worker_not_ready", "worker_unreachable", "error event"})
_RIGHT = {kind.name: kind.right for kind in KINDS}


@dataclass
class Kill:
    """One worker killed: requests of `role` may fail from `at_s` until `back_s`."""

    role: str
    at_s: float
    back_s: float = float("inf")


@dataclass
class Soak:
    """What was seen so far."""

    url: str
    service: psutil.Process
    began_s: float = field(default_factory=time.monotonic)
    outcomes: list[Outcome] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)

    def processes(self) -> dict[str, list[psutil.Process]]:
        """All, by role; several may read prompts."""
        found = {"gateway": [self.service]}
        for child in self.service.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = child.cmdline()
                module = words[words.index("-m") + 1] if "-m" in words else ""
                if module in _ROLE_OF_MODULE:
                    found.setdefault(_ROLE_OF_MODULE[module], []).append(child)
        return found

    def workers(self) -> dict[str, psutil.Process]:
        """The two that are killed."""
        return {role: found[0] for role, found in self.processes().items() if role in ("chat", "reward")}

    def lost(self) -> list[Outcome]:
        """Outcomes that no kill explains."""
        return [one for one in self.outcomes if not self._is_right(one)]

    def _is_right(self, one: Outcome) -> bool:
        if one.is_whole and (one.status in _RIGHT[one.kind] or (one.status == 429 and one.what == "queue_full")):
            return True
        return one.is_whole and one.what in _AWAY and any(self._explains(kill, one) for kill in self.kills)

    @staticmethod
    def _explains(kill: Kill, one: Outcome) -> bool:
        # A bad request may be for either worker.
        return one.role in ("", kill.role) and one.began_s < kill.back_s and one.began_s + one.seconds > kill.at_s


async def client(soak: Soak, number: int, until_s: float, args: argparse.Namespace) -> None:
    """Asks one thing after another, over connections of its own."""
    draw = random.Random(number)
    weights = [kind.weight for kind in KINDS]
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=args.timeout_s)) as http:
        while time.monotonic() < until_s:
            (kind,) = draw.choices(KINDS, weights)
            soak.outcomes.append(await ask(kind, http, soak.url, draw))
            await asyncio.sleep(draw.expovariate(1 / args.think_s))


async def kill_in_turn(soak: Soak, every_s: float) -> None:
    """SIGKILL for the chat worker, then the reward worker, and so on."""
    for number in range(10_000):
        await asyncio.sleep(every_s)
        role = ("chat", "reward")[number % 2]
        kill = Kill(role, time.monotonic())
        soak.kills.append(kill)
        killed = soak.workers()[role]
        killed.send_signal(signal.SIGKILL)
        while soak.workers().get(role, killed).pid == killed.pid or not await asyncio.to_thread(
            _is_ready, soak.url, role
        ):
            await asyncio.sleep(0.2)
        kill.back_s = time.monotonic() + 0.5


async def sample(soak: Soak) -> None:
    """What each process holds, and how long answers took since the last look."""
    at = 0
    while True:
        await asyncio.sleep(_SAMPLE_S)
        since, at = soak.outcomes[at:], len(soak.outcomes)
        held = {name: one for name, found in soak.processes().items() if (one := _held(found)) is not None}
        for name, accounts in (await asyncio.to_thread(_accounts, soak.url)).items():
            held.get(name, {}).update(accounts)
        took = sorted(one.seconds for one in since if one.status == 200 and one.what != "cancelled")
        latency = {"p50_s": _at(took, 0.5), "p99_s": _at(took, 0.99)}
        soak.samples.append({"s": round(time.monotonic() - soak.began_s), "held": held, "num": len(since), **latency})
        newest = soak.samples[-1]
        print(f"{newest['s']:5d} s  {len(soak.outcomes):7d} answers, {len(soak.lost())} lost", file=sys.stderr)


def _held(processes: list[psutil.Process]) -> dict[str, Any] | None:
    """Of all processes of one role together; None where none is left."""
    held: Counter[str] = Counter()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory = process.memory_full_info()
            held.update(
                rss_mib=memory.rss / _MIB,
                pss_mib=memory.pss / _MIB,
                descriptors=process.num_fds(),
                threads=process.num_threads(),
            )
    return {name: round(value, 1) for name, value in held.items()} or None


def _accounts(url: str) -> dict[str, Any]:
    """What each worker says of its memory: the figures of GET /v1/qserve/memory; nothing of one that is away."""
    with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(f"{url}/v1/qserve/memory", timeout=30) as got:
        entries = json.load(got)["data"]
        return {one["worker"]: _account(one["memory"]) for one in entries if "resident" in one.get("memory", ())}
    return {}


def _account(document: dict[str, Any]) -> dict[str, Any]:
    """MiB by what the worker says they are for, and their sum as far as it is charged to this process (PSS)."""
    parts = {name.removesuffix("_bytes"): round(value / _MIB, 1) for name, value in document["resident"].items()}
    shared = parts.pop("shared", 0.0)
    return {"account": parts, "account_mib": round(sum(parts.values()) - shared, 1)}


def _at(values: list[float], quantile: float) -> float:
    return round(values[min(len(values) - 1, int(quantile * len(values)))], 3) if values else 0.0


def _is_ready(url: str, role: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        document = json.load(error)
    except OSError:
        return False
    return any(one["name"] == role and one["state"] == "ready" for one in document["workers"])


@contextlib.contextmanager
def service(folder: Path, model: str, reward: str, flags: list[str]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """`qserve up` with both models, under the names that the clients use."""
    ready = folder / "ready.json"
    command = [
        str(Path(sys.executable).parent / "qserve"),
        "up",
        "--model",
        model,
        "--reward",
        reward,
        "--port",
        "0",
        "--served-model-name",
        "demo",
        "--served-reward-name",
        "demo-reward",
        "--ui",
        "--state-dir",
        str(folder),
        "--ready-file",
        str(ready),
        *flags,
    ]
    with ended(command, folder / "up.log") as process:
        wait_for(ready.exists, process)
        yield json.loads(ready.read_text())["url"], process


async def run(soak: Soak, args: argparse.Namespace) -> None:
    """All of it, for the time."""
    until_s = time.monotonic() + 60 * args.minutes
    beside = [asyncio.create_task(sample(soak))]
    if args.kill_every_s > 0:
        beside.append(asyncio.create_task(kill_in_turn(soak, args.kill_every_s)))
    await asyncio.gather(*(client(soak, number, until_s, args) for number in range(args.clients)))
    for task in beside:
        task.cancel()
    await asyncio.gather(*beside, return_exceptions=True)


def planned_mib(url: str) -> dict[str, float]:
    """What the plan says that each process holds, where the service tells it."""
    with urllib.request.urlopen(f"{url}/v1/qserve/memory", timeout=30) as answer:
        document = json.load(answer)
    names = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "cuda_graphs_bytes", "runtime_bytes")
    workers = {
        one["worker"]: sum(device.get(name, 0) for device in one["planned"]["devices"] for name in names) / _MIB
        for one in document["data"]
        if "planned" in one
    }
    return workers | {one["process"]: one["planned_bytes"] / _MIB for one in document["host"]}


def report(soak: Soak, planned: dict[str, float]) -> str:
    """Tables as Markdown."""
    lost = soak.lost()
    seconds = time.monotonic() - soak.began_s
    lines = [
        f"{len(soak.outcomes)} answers in {seconds / 60:.1f} minutes, {len(soak.kills)} kills, {len(lost)} lost.",
        "",
        "| kind | answers | right | while its worker was away | 429 | lost | p50 s | p99 s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        of_kind = [one for one in soak.outcomes if one.kind == kind.name]
        took = sorted(one.seconds for one in of_kind if one.status in kind.right)
        right, full = len(took), sum(one.status == 429 for one in of_kind)
        gone = sum(one.kind == kind.name for one in lost)
        away = len(of_kind) - right - full - gone
        lines.append(
            f"| {kind.name} | {len(of_kind)} | {right} | {away} | {full} | {gone} | {_at(took, 0.5):.2f} "
            f"| {_at(took, 0.99):.2f} |"
        )
    lines += ["", "| process | planned MiB | " + " | ".join(_COLUMNS) + " |", "|---|---|" + "---|" * len(_COLUMNS)]
    lines += [_process_row(soak, name, planned.get(name)) for name in _ROLES]
    lines += ["", *_account_rows(soak)]
    lines += [
        "",
        "| minute | answers | p50 s | p99 s | gateway RSS | chat RSS | reward RSS |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += _minute_rows(soak)
    if lost:
        lines += ["", "Lost:", ""] + [f"- {count} × {what}" for what, count in _kinds_of(lost).most_common(20)]
    return "\n".join(lines)


_ROLES = ("gateway", "large bodies", "chat", "prompts", "reward", "web UI")
_COLUMNS = (
    "RSS minute 3",
    "RSS end",
    "since minute 3",
    "of the plan",
    "RSS most",
    "PSS end",
    "terms of PSS",
    "descriptors minute 3",
    "descriptors end",
    "threads end",
)


def _process_row(soak: Soak, name: str, planned: float | None) -> str:
    held = [(one["s"], one["held"][name]) for one in soak.samples if name in one["held"]]
    if not held:
        return f"| {name} | | " + " | ".join("" for _ in _COLUMNS) + " |"
    third = next((one for s, one in held if s >= 180), held[0][1])
    last = held[-1][1]
    rss = last["rss_mib"]
    # The plan of a chat worker has the processes in it that read its prompts.
    readers = soak.samples[-1]["held"].get("prompts", {}).get("rss_mib", 0.0) if name == "chat" else 0.0
    of_plan = "" if planned is None else f"{100 * ((rss + readers) / planned - 1):+.1f} %"
    cells = (
        third["rss_mib"],
        rss,
        f"{100 * (rss / third['rss_mib'] - 1):+.1f} %",
        of_plan,
        max(one["rss_mib"] for _, one in held),
        last["pss_mib"],
        _explained(held),
        third["descriptors"],
        last["descriptors"],
        last["threads"],
    )
    return f"| {name} | {'' if planned is None else round(planned)} | " + " | ".join(str(cell) for cell in cells) + " |"


def _explained(held: list[tuple[float, dict[str, Any]]]) -> str:
    """The newest account of a worker's own, as a share of the PSS beside it."""
    sizes = [one for _, one in held if "account_mib" in one]
    return f"{100 * sizes[-1]['account_mib'] / sizes[-1]['pss_mib']:.1f} %" if sizes else ""


def _account_rows(soak: Soak) -> list[str]:
    """What each worker says that its memory is for, at the end."""
    rows = []
    for name in ("chat", "reward"):
        accounts = [one["held"][name]["account"] for one in soak.samples if "account" in one["held"].get(name, ())]
        if accounts:
            parts = ", ".join(f"{part.replace('_', ' ')} {mib:.1f}" for part, mib in accounts[-1].items())
            rows.append(f"- {name}, MiB: {parts}")
    return rows


def _minute_rows(soak: Soak) -> list[str]:
    rows = []
    for minute in range(0, round(soak.samples[-1]["s"] / 60) + 1, 2):
        some = [one for one in soak.samples if minute * 60 <= one["s"] < (minute + 2) * 60]
        if some:
            rss = [
                statistics.median(one["held"][name]["rss_mib"] for one in some if name in one["held"])
                if any(name in one["held"] for one in some)
                else 0
                for name in ("gateway", "chat", "reward")
            ]
            figures = (statistics.median(one["p50_s"] for one in some), max(one["p99_s"] for one in some), *rss)
            rows.append(f"| {minute} | {sum(one['num'] for one in some)} | " + " | ".join(map(str, figures)) + " |")
    return rows


def _kinds_of(lost: list[Outcome]) -> Counter[str]:
    return Counter(f"{one.kind}: status {one.status} {one.what[:100]}" for one in lost)


def _folder_of(name: str, write: Callable[[Path, str], Path]) -> str:
    """A model's name as it is; of a shape the checkpoint that is made of it, which stays for the next time."""
    if name not in SHAPES:
        return name
    return str(write(Path(tempfile.gettempdir()) / f"qserve-soak-{write.__module__}-{name}", name))


def _flags(args: argparse.Namespace) -> list[str]:
    """Of a shape, whose tokenizer has a token for each letter, room for the longest prompt that is to fit."""
    flags = shlex.split(args.up)
    return flags if args.model not in SHAPES or "--max-model-len" in flags else ["--max-model-len", "4096", *flags]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--kill-every-s", type=float, default=120.0, help="0: none is killed")
    parser.add_argument("--think-s", type=float, default=0.5, help="mean pause of a client between requests")
    parser.add_argument("--timeout-s", type=float, default=180.0, help="when a client gives up, which counts as lost")
    parser.add_argument("--model", default="demo", help="demo, a folder, or a shape of bench/random_checkpoint.py")
    parser.add_argument("--reward", default="demo", help="the same; of a shape a classifier with one score is made")
    parser.add_argument("--up", default="", help="more flags of `qserve up`, as one word")
    parser.add_argument("--output", type=Path, help="all samples, kills and lost answers as JSON")
    args = parser.parse_args()
    service_args = (_folder_of(args.model, write_checkpoint), _folder_of(args.reward, write_reward), _flags(args))
    with (
        tempfile.TemporaryDirectory(prefix="qserve-soak-") as name,
        service(Path(name), *service_args) as (url, process),
    ):
        soak, planned = Soak(url, psutil.Process(process.pid)), planned_mib(url)
        asyncio.run(run(soak, args))
        print(report(soak, planned))
        if args.output is not None:
            kills = [
                vars(kill) | {"at_s": kill.at_s - soak.began_s, "back_s": kill.back_s - soak.began_s}
                for kill in soak.kills
            ]
            lost = [vars(one) | {"began_s": one.began_s - soak.began_s} for one in soak.lost()]
            document = {"samples": soak.samples, "kills": kills, "lost": lost, "num_answers": len(soak.outcomes)}
            args.output.write_text(json.dumps(document))
    sys.exit(1 if soak.lost() else 0)


if __name__ == "__main__":
    main()
