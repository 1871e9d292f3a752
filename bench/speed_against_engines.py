"""Planned speed against real engines on this CPU: planned, measured, learned from half of the rounds, judged on others.

    python bench/speed_against_engines.py                      # both engines, 0.6B and 1.7B shapes: 24 minutes
    python bench/speed_against_engines.py --shapes qwen3-0.6b --engines transformers --streams 1 4 --most-minutes 4
    python bench/speed_against_engines.py --resume             # goes on with the record in --out
    python bench/speed_against_engines.py --again RECORD       # the table of a record, planned by today's code

Random weights in real shapes, each served once by `qserve up` and loaded over HTTP in closed loops of --streams,
with answers of the same different lengths each round (of answers of one length all end at once, and the next prompts
race for the first step: which of them share it moves TTFT against TPOT, and says nothing of the engine). Short
rounds follow each other, all loads in turn: every other one of a load teaches, those between them are judged, so that
a machine that grows slower or quicker meanwhile does so for both. What the CPU reads and multiplies is measured, as by
`qserve doctor --measure`, between any two rounds, and a round is planned with the middle of what was found
within five minutes of it. Planned and measured are medians over rounds; beside them stand how many rounds there are
and how far the furthest lie from their median. What is learned is what `qserve plan` makes of the run store, from the
requests of the rounds that teach alone. A round is clean where others computed for less than --most-others of the
machine and no rate moved by more than --most-drift; with two clean rounds to learn from and two to judge by, others
do not count.

Exit status 1 where a figure is off by more than 15 %, after learning by more than 5 %, or an engine failed; the others
run all the same. All rounds are in --out as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.machine_load import OthersLoad
from bench.random_checkpoint import write_checkpoint
from bench.servers import Server, free_port, running, wait_ready
from bench.speed_rounds import MOST_OTHERS, Record, Round, Subject, drift_between, line_of, mean_of, table
from qserve.bench.client import LoadClient
from qserve.bench.connection import Address
from qserve.bench.counting import counter_of
from qserve.bench.endpoints import ENDPOINTS, Endpoint, Prompt
from qserve.bench.load import Stage
from qserve.bench.metrics import StageFigures, figures_of
from qserve.bench.prompts import TextMaker
from qserve.bench.run import run_stage
from qserve.bench.target import inspect_target
from qserve.planner.speed.load import Load
from qserve.planner.speed.served import ServedRequest
from qserve.planner.speed.terms.cpu import CpuRates
from qserve.runs import RunStore
from qserve.runs.served import served_requests
from qserve.state_folder import state_folder

MAX_MODEL_LEN, MAX_NUM_SEQS = 1024, 16
READY_S = 300.0
STORED_S = 20.0
"""Requests are written behind the answers, by the batch."""


@dataclass(frozen=True)
class Service:
    """`qserve up` of a subject."""

    subject: Subject
    folder: Path
    state: Path
    is_eager: bool

    @property
    def flags(self) -> list[str]:
        """Of `qserve plan` and of `qserve up` alike."""
        return [
            "--model",
            str(self.folder),
            "--engine",
            self.subject.engine,
            "--gpu",
            "none",
            "--quant",
            "bf16",
            "--max-model-len",
            str(MAX_MODEL_LEN),
            "--max-num-seqs",
            str(MAX_NUM_SEQS),
            "--state-dir",
            str(self.state),
            "--no-learn",
            *(["--enforce-eager"] if self.is_eager and self.subject.engine == "vllm" else []),
        ]

    def planned(self) -> dict[str, Any]:
        """Raises RuntimeError with what `qserve plan` said where it failed."""
        command = [sys.executable, "-m", "qserve", "plan", *self.flags, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=READY_S, check=False)
        if done.returncode:
            raise RuntimeError(f"qserve plan failed ({done.returncode}): {done.stderr[-1000:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def server(self) -> Server:
        port = free_port()
        command = [sys.executable, "-m", "qserve", "up", *self.flags, "--no-ui", "--port", str(port)]
        return Server(self.subject.engine, command, port, "bench", "/ready")


class Asker:
    """Sends the rounds of one server, each with prompts of its own, so that no prefix is in the cache."""

    def __init__(self, url: str, folder: Path, seed: int) -> None:
        self._target = inspect_target(Address.of(url), "", None, scores=False)
        self._maker = TextMaker(counter_of(self._target.address, "", self._target.model, folder))
        self._draw = random.Random(seed)

    async def ask(self, load: Load) -> StageFigures:
        """Raises RuntimeError where an answer did not come."""
        endpoint = Endpoint(
            "completions", ENDPOINTS["completions"], self._target.model, streams=True, ignore_eos=True, temperature=0.0
        )
        client = LoadClient(self._target.address, endpoint)
        prompts = (
            Prompt(self._maker.text(count, self._draw), answer, count)
            for count, answer in itertools.cycle(load.lengths)
        )
        stage = Stage(concurrency=load.concurrency, num_prompts=load.total_prompts)
        try:
            run = await run_stage(client, stage, prompts, 0, asyncio.Event())
        finally:
            client.close()
        figures = figures_of(run, {})
        if figures.failed or figures.completed < load.total_prompts:
            why = next((one.failure.sentence for one in run.records if one.failure), run.gone)
            raise RuntimeError(f"{figures.completed} of {load.total_prompts} answers came: {why}")
        return figures


class Session:
    """Runs subjects, one after the other, until each has its rounds or its part of the time is over."""

    def __init__(self, arguments: argparse.Namespace, record: Record) -> None:
        from qserve.engines.transformers.cpu_rates import CpuProbe  # brings torch

        self.arguments, self.record = arguments, record
        self.probe = CpuProbe()
        self.loads = [load_of(streams, arguments) for streams in arguments.streams]

    async def serve(self, service: Service, ends_at: float) -> None:
        """All loads in turn; at least one round of each that teaches and one that is judged."""
        self.record.note(
            plan=service.planned(),
            engine=service.subject.engine,
            shape=service.subject.shape,
            folder=str(service.folder),
        )
        server, log = service.server(), self.record.path.with_suffix(f".{server_name(service.subject)}.log")
        with running(server, log) as process:
            async with asyncio.timeout(READY_S):
                await wait_ready(server, process, log)
            asker = Asker(server.url, service.folder, self.arguments.seed)
            for load in self.loads:  # kernels of these shapes are made once
                few = replace(load, num_prompts=load.streams, lengths=tuple((one, 4) for one, _ in load.lengths))
                await asker.ask(few)
            rates = self._rates(service.subject)
            had = self.record.rounds(service.subject)
            begins, took = max(0, (len(had) // len(self.loads)) // 2 * 2), 0.0
            for turn in range(begins, begins + 2 * -(-self.arguments.most_rounds // 2)):
                if turn >= begins + 2 and time.monotonic() + took > ends_at:
                    break
                began = time.monotonic()
                for load in self.loads:
                    rates = await self._round(service, asker, load, turn, rates)
                took = time.monotonic() - began

    async def _round(self, service: Service, asker: Asker, load: Load, turn: int, before: CpuRates) -> CpuRates:
        others, began = OthersLoad(), time.time()
        found = await asker.ask(load)
        share, after = others.share, self._rates(service.subject)
        served = await served_since(service, began, load.total_prompts)
        drift = drift_between(before, after)
        figures = {"ttft_ms": found.ttft.mean, "tpot_ms": found.tpot.mean, "output_tokens_per_s": found.rate}
        one = Round(
            service.subject.engine,
            service.subject.shape,
            turn,
            load,
            figures,
            mean_of(before, after),
            drift,
            share,
            share <= self.arguments.most_others and drift <= self.arguments.most_drift,
            tuple(served),
        )
        self.record.note(round=one.to_json())
        print(f"  {line_of(one)}", flush=True)
        return after

    def _rates(self, subject: Subject) -> CpuRates:
        """Of the cores that the engine computes on."""
        seconds = self.arguments.probe_seconds
        if subject.engine != "vllm":
            return CpuRates.from_json(self.probe.own_rates(seconds))
        fewer = self.probe.fewer_rates(seconds)
        return CpuRates.from_json({**fewer, "cores": fewer["cores"] + 1, "fewer": fewer})


def load_of(streams: int, arguments: argparse.Namespace) -> Load:
    """A closed loop whose answers differ in length, the same ones each round.

    Of answers of one length all end at once, and the next prompts race for the first step as the first ones did.
    """
    count = max(arguments.least_prompts, arguments.waves * streams)
    spread = arguments.output_spread
    shares = [1 - spread + 2 * spread * (place + 0.5) / count for place in range(count)]
    random.Random(count).shuffle(shares)
    lengths = tuple((arguments.input_len, round(arguments.output_len * share)) for share in shares)
    return Load(
        arguments.input_len, arguments.output_len, concurrency=streams, jitter=0.0, num_prompts=count, lengths=lengths
    )


def server_name(subject: Subject) -> str:
    """For files."""
    return f"{subject.engine}-{subject.shape}"


async def served_since(service: Service, began_unix_s: float, wanted: int) -> list[ServedRequest]:
    """What the gateway noted of a round. Raises RuntimeError where that does not come."""
    store = RunStore.open(state_folder(service.state))
    until = time.monotonic() + STORED_S
    while time.monotonic() < until:
        (run,) = store.runs(1)
        found = [
            one
            for worker in run.workers
            for one in served_requests(store, run, worker.name, wanted)
            if one.at_s >= began_unix_s
        ]
        if len(found) >= wanted:
            return found
        await asyncio.sleep(0.1)
    raise RuntimeError(f"{wanted} requests were answered, and the run store holds {len(found)} of them")


def weight_of(subject: Subject, shapes: Sequence[str]) -> int:
    """Of its share of the time: vLLM takes as long to start as to answer, and shapes are given by their size."""
    return (2 if subject.engine == "vllm" else 1) * (1 + shapes.index(subject.shape))


def run_all(arguments: argparse.Namespace, session: Session, states: Path) -> None:
    """The time that is left is shared by the subjects that are left; one that fails is noted, and the next begins."""
    subjects = [Subject(engine, shape) for shape in arguments.shapes for engine in arguments.engines]
    wanted = arguments.most_rounds * len(arguments.streams)
    left = [one for one in subjects if len(session.record.rounds(one)) < wanted]
    ends_at = time.monotonic() + 60 * arguments.most_minutes
    weights = [weight_of(one, arguments.shapes) for one in left]
    for place, subject in enumerate(left):
        mine = (ends_at - time.monotonic()) * weights[place] / sum(weights[place:])
        until = time.monotonic() + mine
        print(f"{subject}: {mine / 60:.1f} minutes", flush=True)
        try:
            folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{subject.shape}", subject.shape)
            service = Service(subject, folder, states / server_name(subject), not arguments.compiled)
            asyncio.run(session.serve(service, until))
        except (Exception, SystemExit) as error:
            why = str(error) or type(error).__name__
            print(f"  {subject} failed: {why}", flush=True)
            session.record.note(failed=why, engine=subject.engine, shape=subject.shape)


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["transformers", "vllm"], default=["transformers", "vllm"])
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "qwen3-1.7b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=24, help="in the mean")
    parser.add_argument("--output-spread", type=float, default=0.5, help="answers are so much shorter and longer")
    parser.add_argument("--most-rounds", type=int, default=10, help="of a load; every other one teaches")
    parser.add_argument("--least-prompts", type=int, default=3, help="of a round")
    parser.add_argument("--waves", type=int, default=3, help="requests of a stream in a round")
    parser.add_argument("--most-minutes", type=float, default=23.0, help="for all rounds, starts of engines included")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile, which takes minutes on a CPU")
    parser.add_argument("--most-others", type=float, default=MOST_OTHERS, help="of the machine, in a clean round")
    parser.add_argument("--most-drift", type=float, default=0.08, help="of a rate, over a clean round")
    parser.add_argument("--probe-seconds", type=float, default=0.05, help="for each figure of the CPU")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "qserve-speed-against-engines.jsonl")
    parser.add_argument("--resume", action="store_true", help="add rounds to those that --out holds")
    parser.add_argument("--again", type=Path, metavar="RECORD", help="measure nothing: the table of this record")
    return parser.parse_args(words)


def shown(record: Record) -> int:
    """Prints the table; how many figures are off by more than is allowed."""
    rows = list(table(record))
    print("\n".join(row for row, _ in rows))
    misses = [miss for _, some in rows for miss in some]
    print(f"\n{sum(misses)} of {len(misses)} figures are further off than 15 % before, 5 % after learning")
    return sum(misses)


def main() -> None:
    """Command line."""
    arguments = parsed()
    if arguments.again:
        sys.exit(1 if shown(Record(arguments.again)) else 0)
    if "vllm" in arguments.engines and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here (make setup): left out")
        arguments.engines.remove("vllm")
    # A benchmark that is told to stop must not leave its servers behind; what there is of the record is shown.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    record = Record(arguments.out)
    if not arguments.resume:
        arguments.out.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="qserve-speed-") as states, suppress(KeyboardInterrupt):
        run_all(arguments, Session(arguments, record), Path(states))
    off = shown(record)
    print(f"the record is {arguments.out}")
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
