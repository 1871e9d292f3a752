"""Faults under load: what becomes of answers while workers are killed, stopped, starved, restarted or lost.

    python bench/chaos.py --minutes 30 --replicas 3 --faults kill    # every ten seconds, or as soon as all are ready
    python bench/chaos.py --minutes 2 --json all.json                # every fault, with 1, 2 and 3 replicas; an hour
    python bench/chaos.py --page docs/results/reliability.md *.json  # writes the results there

64 clients ask without a pause for answers of ten kinds: greedy and drawn, several choices, penalties, a schema, a tool,
completions, Messages, Responses, and one that is not streamed. Each asks the same thing every time, so each answer is
held against the one that was given before any fault. A calm half minute first says what an answer takes under this
load. The service is the demo in float32 on qserve's own engine; --engine vllm for the other. Prints a row for each
number of replicas and fault: answers, those that failed (by error), those that say something else, the seconds that a
fault added to answers that it met (median, p99), and until all replicas were ready again. Exit status 1 where any
failed or differs. These processes share the machine with the load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

import aiohttp
from chaos_faults import DISK, FAULTS, NODE, Fault, NotHere, Struck, small_disk, spare_nodes
from chaos_requests import KINDS, Answer, ask
from replicas import served

_CALM_S = 30.0
_DOWN_WITHIN_S, _WHOLE_WITHIN_S = 90.0, 300.0
_BEGIN, _END = "<!-- rows: written by bench/chaos.py --page -->", "<!-- end of rows -->"
_ERRORS_SHOWN = 3


@dataclass
class Row:
    """One fault, again and again, for one number of replicas."""

    replicas: int
    fault: str
    why_not: str = ""
    num_faults: int = 0
    num_answers: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    different: Counter[str] = field(default_factory=Counter)
    added_s: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        return not self.errors and not self.different

    def __str__(self) -> str:
        head = f"| {self.replicas} | {self.fault} "
        if self.why_not:
            return f"{head}| {self.why_not} | | | | | |"
        errors = ", ".join(f"{count} {code}" for code, count in self.errors.most_common(_ERRORS_SHOWN))
        different = ", ".join(f"{count} {kind}" for kind, count in self.different.most_common(_ERRORS_SHOWN))
        added = f"{median(self.added_s):.1f}, {_p99(self.added_s):.1f}" if self.added_s else "none was met"
        back = f"{median(self.recovered_s):.1f}, {max(self.recovered_s):.1f}" if self.recovered_s else ""
        return (
            f"{head}| {self.num_faults} | {self.num_answers:,} | {errors or 0} | {different or 0} | {added} | {back} |"
        )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


class Load:
    """Clients that ask without a pause, each for one kind of answer."""

    def __init__(self, http: aiohttp.ClientSession, model: str, num_clients: int) -> None:
        self._http = http
        self._model = model
        kinds = list(KINDS)
        self._clients = [(kinds[at % len(kinds)], f"What is {at // len(kinds)}+{at}?") for at in range(num_clients)]
        self._expected: dict[tuple[str, str], str] = {}
        self.answers: list[tuple[str, str, Answer]] = []

    async def learn(self) -> None:
        """What each answer says without a fault. Raises SystemExit where one fails, or has more than one answer."""
        for turn in range(2):
            answers = await asyncio.gather(
                *(ask(self._http, self._model, *one, f"learned {turn}") for one in self._clients)
            )
            for one, answer in zip(self._clients, answers, strict=True):
                if answer.error or self._expected.setdefault(one, answer.said) != answer.said:
                    raise SystemExit(f"{one} without a fault: {answer.error or 'says this and that'}: {answer.said}")

    async def run(self, duration_s: float) -> list[tuple[str, str, Answer]]:
        """All answers of so long; those that run at its end come to theirs."""
        self.answers = []
        until_s = time.monotonic() + duration_s
        await asyncio.gather(*(self._ask_on(number, until_s) for number in range(len(self._clients))))
        return self.answers

    async def _ask_on(self, number: int, until_s: float) -> None:
        one, turn = self._clients[number], 0
        while time.monotonic() < until_s:
            turn += 1
            answer = await ask(self._http, self._model, *one, f"{number} {turn} {until_s}")
            self.answers.append((*one, answer))

    def is_as_expected(self, kind: str, question: str, answer: Answer) -> bool:
        return answer.said == self._expected[kind, question]


async def measured(replicas: int, name: str, args: argparse.Namespace) -> Row:
    """One row."""
    row = Row(replicas, FAULTS[name].title)
    precision = ("--dtype", "float32") if args.engine == "transformers" else ("--dtype", "float32", "--enforce-eager")
    flags = ("--model", "demo", "--engine", args.engine, *precision, "--max-num-seqs", str(args.places))
    flags = (*flags, "--replicas", str(replicas), "--resume-wait", "300", "--max-queue", "1024")
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk()) if name == DISK else None
        except NotHere as why:
            row.why_not = f"not run: {why}"
            return row
        nodes = stack.enter_context(spare_nodes(replicas)) if name == NODE else None
        flags = (*flags, "--ray", nodes.address) if nodes else flags
        service = stack.enter_context(served(*flags, on=disk))
        async with aiohttp.ClientSession(service.url, connector=aiohttp.TCPConnector(limit=0)) as http:
            load = Load(http, "demo", args.streams)
            await load.learn()
            calm = await load.run(min(_CALM_S, args.minutes * 60))
            usual_s = {kind: median([one.took_s for of, _, one in calm if of == kind]) for kind in KINDS}
            asking = asyncio.create_task(load.run(args.minutes * 60))
            faults_s = await _disturb(http, Struck(service, nodes), FAULTS[name], row, args)
            answers = await asking
    for kind, question, answer in answers:
        row.num_answers += 1
        if answer.error:
            row.errors[answer.error] += 1
        elif not load.is_as_expected(kind, question, answer):
            row.different[kind] += 1
        if any(answer.began_s < at_s < answer.ended_s for at_s in faults_s):
            row.added_s.append(max(0.0, answer.took_s - usual_s[kind]))
    return row


async def _disturb(
    http: aiohttp.ClientSession, struck: Struck, fault: Fault, row: Row, args: argparse.Namespace
) -> list[float]:
    """When there were faults: every so many seconds, and not before the service is whole again."""
    until_s, faults_s = time.monotonic() + args.minutes * 60, []
    while time.monotonic() + args.every_s < until_s:
        await asyncio.sleep(args.every_s if not faults_s else max(0.0, faults_s[-1] + args.every_s - time.monotonic()))
        if not await _ready_replicas(http):
            continue  # none to disturb
        at_s = time.monotonic()
        try:
            await fault.strike(struck)
        except NotHere as why:
            row.why_not = f"not run: {why}"
            break
        faults_s.append(at_s)
        row.num_faults += 1
        if fault.takes_down:
            await _until_whole(http, row.replicas, at_s + _DOWN_WITHIN_S, until_s + _WHOLE_WITHIN_S)
            row.recovered_s.append(time.monotonic() - at_s)
    return faults_s


async def _ready_replicas(http: aiohttp.ClientSession) -> list[str]:
    try:
        async with http.get("/ready") as reply:
            return [one["name"] for one in (await reply.json())["workers"] if one["state"] == "ready"]
    except aiohttp.ClientError:
        return []


async def _until_whole(http: aiohttp.ClientSession, replicas: int, down_by_s: float, until_s: float) -> None:
    """A replica is down, and then all are ready."""
    was_down = False
    while time.monotonic() < (until_s if was_down else down_by_s):
        num_ready = len(await _ready_replicas(http))
        if was_down and num_ready == replicas:
            return
        was_down |= num_ready < replicas
        await asyncio.sleep(0.05)


def write_page(page: Path, files: Sequence[Path]) -> None:
    """Replaces the results of the page by those of `files`, and sums them up."""
    head, rest = page.read_text().split(_BEGIN, 1)
    results = [json.loads(file.read_text()) for file in files]
    parts = ["\n".join([f"{result['about']}\n", _HEAD, *result["rows"]]) for result in results]
    rows = [[cell.strip() for cell in row.split("|")] for result in results for row in result["rows"]]
    faults, answers = (sum(int(row[at].replace(",", "") or 0) for row in rows if row[at]) for at in (3, 4))
    is_well = all(row[5] in ("", "0") and row[6] in ("", "0") for row in rows)
    ends = "none failed, and none said anything else" if is_well else "some failed or said something else (above)"
    parts.append(f"In all, of {answers:,} answers under {faults} faults {ends}.")
    body = "\n\n".join(parts)
    page.write_text(f"{head}{_BEGIN}\n\n{body}\n\n{_END}{rest.split(_END, 1)[1]}")


def _about(args: argparse.Namespace) -> str:
    words = [word for word in sys.argv[1:] if word != "--json" and word != str(args.json)]
    machine = f"{date.today():%Y-%m-%d}, {os.cpu_count()} cores ({platform.machine()})"
    return f"`python bench/chaos.py {' '.join(words)}`, {machine}:"


_HEAD = """| replicas | fault | times | answers | failed | differ | seconds added, median and p99 | \
seconds until whole, median and most |
|---|---|---:|---:|---:|---:|---:|---:|"""


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of each row, after a calm one")
    parser.add_argument("--every-s", type=float, default=10.0, help="between two faults")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--places", type=int, default=16, help="sequences that each replica runs at once")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--faults", nargs="+", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--engine", choices=["transformers", "vllm"], default="transformers")
    parser.add_argument("--json", type=Path, help="a file for the results")
    parser.add_argument("--page", type=Path, nargs="+", metavar=("PAGE", "JSON"), help="writes results into a page")
    args = parser.parse_args()
    if args.page:
        write_page(args.page[0], args.page[1:])
        return 0
    print(_HEAD, flush=True)
    rows = []
    for replicas in args.replicas:
        for name in args.faults:
            rows.append(asyncio.run(measured(replicas, name, args)))
            print(rows[-1], flush=True)
    if args.json:
        args.json.write_text(json.dumps({"about": _about(args), "rows": [str(row) for row in rows]}, indent=1))
    return 0 if all(row.is_well for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
