"""Planned speed against real engines on this CPU: planned, measured, learned from one set of rounds, judged on others.

    python bench/speed_against_engines.py                      # both engines, 0.6B and 1.7B shapes: about 12 minutes
    python bench/speed_against_engines.py --shapes qwen3-0.6b --engines transformers --streams 1 4
    python bench/speed_against_engines.py --resume             # engines and shapes that the record lacks
    python bench/speed_against_engines.py --again RECORD       # the table of a record, planned by today's code

Random weights in real shapes, served by `qserve up`, loaded by `qserve bench` in closed loops. What the CPU reads and
multiplies is measured as by `qserve doctor --measure` immediately before and after each round, since neighbours on a
shared host move it by a fifth from one minute to the next; a round is planned with the mean of both. A round in which
others computed for more than --most-others of the machine, or over which a rate moved by more than --most-drift, is
taken again while --most-minutes last. The first set of rounds teaches (`learned`: what `qserve plan` makes of the run
store); the sets after it are judged. Planned over measured is the median over sets. Exit status 1 where a figure is off
by more than 15 %, after learning by more than 5 %. All rounds are in --out as they come.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.machine_load import OthersLoad
from bench.random_checkpoint import write_checkpoint
from bench.servers import Server, free_port, running, wait_ready
from qserve.cli.doctor.measured import keep_rates, measured_speed
from qserve.cli.options.planning import hardware_of
from qserve.cli.state import state_folder
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.hub import resolve
from qserve.planner.plan import Plan
from qserve.planner.speed import Load
from qserve.planner.speed.estimate import device_of, replica_of
from qserve.planner.speed.learned import Measured, SpeedResidual, StepFactors
from qserve.planner.speed.terms.cpu import CpuRates

MAX_MODEL_LEN, MAX_NUM_SEQS = 1024, 16
BEFORE, LEARNED = 0.15, 0.05
METRICS = {"ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "output_tokens_per_s": "tokens/s"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Subject:
    """One engine with one shape, and where it keeps what it learns."""

    engine: str
    shape: str
    folder: Path
    state: Path
    is_eager: bool = False

    @property
    def flags(self) -> list[str]:
        """Of `qserve plan` and of `qserve up` alike."""
        return [
            "--model", str(self.folder), "--engine", self.engine, "--gpu", "none", "--quant", "bf16",
            "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(MAX_NUM_SEQS), "--state-dir", str(self.state),
            "--no-learn", *(["--enforce-eager"] if self.is_eager and self.engine == "vllm" else []),
        ]  # fmt: skip

    @property
    def kept(self) -> Path:
        """Where commands keep runs and rates below their --state-dir."""
        return state_folder(self.state)

    def server(self) -> Server:
        port = free_port()
        command = [sys.executable, "-m", "qserve", "up", *self.flags, "--no-ui", "--port", str(port)]
        return Server(self.engine, command, port, "bench", "/ready")


@dataclass(frozen=True)
class Round:
    """One load once: what it took, and what the machine could do around it."""

    engine: str
    shape: str
    turn: int
    load: Load
    figures: Figures
    rates: CpuRates
    drift: float
    others: float

    def to_json(self) -> dict[str, Any]:
        names = ("input_tokens", "output_tokens", "concurrency", "num_prompts")
        load = {name: getattr(self.load, name) for name in names}
        return {**asdict(self), "load": load, "rates": self.rates.to_json()}

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> Round:
        load = Load(**told["load"], jitter=0.0)
        return cls(**{**told, "load": load, "rates": CpuRates.from_json(told["rates"])})


@cache
def this_machine() -> Hardware:
    """Looked at once: it takes longer than the plans of a record."""
    return hardware_of("none")


@dataclass(frozen=True)
class Judge:
    """Plans the rounds of one subject: each with the rates of its own minute."""

    checkpoint: Checkpoint
    plan: Plan
    residuals: tuple[SpeedResidual, ...] = ()

    def planned(self, one: Round) -> Figures:
        device = device_of(self.plan, this_machine())
        assert device is not None
        replica = replica_of(self.plan, self.checkpoint.spec, device, Measured(one.rates, self.residuals))
        found = replica.run(one.load)
        return {
            "ttft_ms": found.ttft_ms.mean, "tpot_ms": found.tpot_ms.mean,
            "output_tokens_per_s": found.output_tokens_per_s,
        }  # fmt: skip


def qserve(*arguments: str, timeout_s: float = 300) -> str:
    """One command's standard output; ends the benchmark with what it said where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "qserve", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        sys.exit(f"qserve {arguments[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def measured(server: Server, subject: Subject, load: Load, seed: int) -> Figures:
    """One round, as its client saw it."""
    text = qserve(
        "bench", "--url", server.url, "--endpoint", "completions", "--concurrency", str(load.concurrency),
        "--num-prompts", str(load.num_prompts), "--input-len", str(load.input_tokens), "--output-len",
        str(load.output_tokens), "--num-warmups", "0", "--seed", str(seed), "--json", "--state-dir", str(subject.state),
    )  # fmt: skip
    stage = json.loads(text)["stages"][0]
    return {
        "ttft_ms": stage["mean_ttft_ms"], "tpot_ms": stage["mean_tpot_ms"],
        "output_tokens_per_s": stage["output_throughput"],
    }  # fmt: skip


class Session:
    """All rounds, and the file that they are written to as they come."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from qserve.engine.cpu_rates import CpuProbe

        self.arguments, self.out = arguments, arguments.out
        self.ends_at = time.monotonic() + 60 * arguments.most_minutes
        self.seed = arguments.seed
        self.probe = CpuProbe()
        self.rates = self._probed()

    @property
    def loads(self) -> list[Load]:
        told = self.arguments
        return [
            Load(
                told.input_len,
                told.output_len,
                concurrency=streams,
                jitter=0.0,
                num_prompts=max(3, streams, min(2 * streams, 16)),
            )
            for streams in told.streams
        ]

    def note(self, **what: Any) -> None:
        """A line of the record."""
        with self.out.open("a") as file:
            file.write(json.dumps({"at": time.strftime("%H:%M:%S"), **what}) + "\n")

    def run(self, subject: Subject) -> None:
        """Plan, start, measure; learn after the first set of rounds."""
        plan = json.loads(qserve("plan", *subject.flags, "--json"))
        self.note(plan=plan, engine=subject.engine, shape=subject.shape, folder=str(subject.folder))
        asyncio.run(self._served(subject))

    async def _served(self, subject: Subject) -> None:
        server, log = subject.server(), self.out.with_suffix(f".{subject.engine}-{subject.shape}.log")
        with running(server, log) as process:
            await wait_ready(server, process, log)
            for load in self.loads:  # kernels of these shapes are made once
                measured(server, subject, replace(load, output_tokens=4), self._next_seed())
            time.sleep(1.5)  # what comes next is a load of its own
            self.rates = self._probed()
            for turn in range(self.arguments.sets):
                for load in self.loads:
                    self._round(server, subject, load, turn)
                if turn == 0:
                    checkpoint = resolve(str(subject.folder))
                    known = measured_speed(subject.kept, checkpoint, hardware_of("none"), "none", is_off=False)
                    learned = [asdict(one) for one in known.residuals]
                    self.note(learned=learned, engine=subject.engine, shape=subject.shape)

    def _round(self, server: Server, subject: Subject, load: Load, turn: int) -> None:
        """Taken again as long as something else moved the machine and time is left."""
        for _ in range(self.arguments.most_tries):
            before, others = self.rates, OthersLoad()
            began = time.time()
            figures = measured(server, subject, load, self._next_seed())
            share, ended = others.share, time.time()
            self.rates = self._probed()
            rates = replace(mean_of(before, self.rates), at_unix_s=(began + ended) / 2)
            drift = drift_between(before, self.rates)
            found = Round(subject.engine, subject.shape, turn, load, figures, rates, drift, share)
            is_quiet = share <= self.arguments.most_others and drift <= self.arguments.most_drift
            self.note(round=found.to_json(), quiet=is_quiet)
            keep_rates(subject.kept, rates)
            print(f"  {line_of(found)}", flush=True)
            if is_quiet or time.monotonic() > self.ends_at:
                return

    def _probed(self) -> CpuRates:
        return CpuRates.from_json(self.probe.all_rates(self.arguments.probe_seconds, with_codes=False))

    def _next_seed(self) -> int:
        """Prompts of their own for each round: no prefix is in the cache."""
        self.seed += 1
        return self.seed


def mean_of(one: CpuRates, other: CpuRates) -> CpuRates:
    """Halfway between two measurements, figure by figure."""
    fewer = None if one.fewer is None or other.fewer is None else mean_of(one.fewer, other.fewer)
    return replace(
        one,
        read_bytes_per_s=(one.read_bytes_per_s + other.read_bytes_per_s) / 2,
        gemm_flop_per_s=(one.gemm_flop_per_s + other.gemm_flop_per_s) / 2,
        linear_ps=tuple((rows, (a + b) / 2) for (rows, a), (_, b) in zip(one.linear_ps, other.linear_ps, strict=True)),
        fewer=fewer,
    )


def drift_between(one: CpuRates, other: CpuRates) -> float:
    """How far apart the two are: products of one row and of many, as a share."""
    pairs = zip(one.linear_ps, other.linear_ps, strict=True)
    return max(abs(a / b - 1) for (rows, a), (_, b) in pairs if rows in (1, 16, 256))


def line_of(one: Round) -> str:
    """What came of a round."""
    told = ", ".join(f"{METRICS[name]} {value:.1f}" for name, value in one.figures.items())
    return (
        f"{one.engine}, {one.shape}, {one.load.concurrency} streams, set {one.turn + 1}: {told}; "
        f"{one.rates.read_bytes_per_s / 1e9:.1f} GB/s, moved {one.drift:.0%}, others {one.others:.0%}"
    )


def keep_if_whole(record: Path, engine: str, shape: str, wanted: int) -> bool:
    """Whether the record has every round of a subject; where it lacks some, all lines of it are taken out."""
    lines = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []

    def is_of(line: dict[str, Any]) -> bool:
        told = line.get("round", line)
        return (told["engine"], told["shape"]) == (engine, shape)

    rounds = [line["round"] for line in lines if "round" in line and is_of(line)]
    if len({(one["turn"], one["load"]["concurrency"]) for one in rounds}) >= wanted:
        return True
    record.write_text("".join(json.dumps(line) + "\n" for line in lines if not is_of(line)))
    return False


def show(record: Path) -> int:
    """Prints the table of a record, planned by this code; how many figures are off by more than is allowed."""
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    rounds: dict[tuple[str, str], list[Round]] = defaultdict(list)
    for line in lines:
        if "round" in line:
            one = Round.from_json(line["round"])
            # Of rounds that were taken again the last one counts.
            kept = [old for old in rounds[one.engine, one.shape] if (old.turn, old.load) != (one.turn, one.load)]
            rounds[one.engine, one.shape] = [*kept, one]
    print("| engine | shape | streams | | planned before | measured | error | learned, on later sets | drift, others |")
    print("|---|---|---|---|---|---|---|---|---|")
    off = count = 0
    for line in lines:
        if "plan" in line:
            key = line["engine"], line["shape"]
            taught = (one["learned"] for one in lines if "learned" in one and (one["engine"], one["shape"]) == key)
            told = next(taught, [])
            judge = Judge(resolve(line["folder"]), Plan.from_json(line["plan"]))
            for row, misses in _rows(judge, _residuals(told, judge.plan), rounds[key]):
                print(row)
                off, count = off + sum(misses), count + len(misses)
    print(f"\n{off} of {count} figures are further off than {BEFORE:.0%} before, {LEARNED:.0%} after learning")
    return off


def _rows(
    judge: Judge, residuals: tuple[SpeedResidual, ...], rounds: Sequence[Round]
) -> Iterator[tuple[str, list[bool]]]:
    taught = replace(judge, residuals=residuals)
    for streams in sorted({one.load.concurrency or 1 for one in rounds}):
        some = [one for one in rounds if one.load.concurrency == streams]
        later = [one for one in some if one.turn > 0]
        for metric, title in METRICS.items():
            before, after = _errors(judge, some, metric), _errors(taught, later, metric)
            first, then = statistics.median(before), statistics.median(after) if after else 0.0
            misses = [abs(first) > BEFORE, *([abs(then) > LEARNED or not residuals] if after else [])]
            values = [one.figures[metric] for one in some]
            each = ", ".join(f"{value:.1f}" for value in values)
            learned = f"{100 * then:+.1f} %{' !' * (abs(then) > LEARNED)} ({_percents(after)})"
            learned = learned if residuals else "nothing was learned !"
            yield (
                f"| {some[0].engine} | {some[0].shape} | {streams} | {title} "
                f"| {statistics.median(values) * (1 + first):.1f} | {statistics.median(values):.1f} ({each}) "
                f"| {100 * first:+.1f} %{' !' * (abs(first) > BEFORE)} ({_percents(before)}) | {learned} "
                f"| {max(one.drift for one in some):.0%}, {max(one.others for one in some):.0%} |",
                misses,
            )


def _errors(judge: Judge, rounds: Iterable[Round], metric: str) -> list[float]:
    return [judge.planned(one)[metric] / one.figures[metric] - 1 for one in rounds]


def _percents(errors: Iterable[float]) -> str:
    return ", ".join(f"{100 * error:+.0f}" for error in errors)


def _residuals(told: list[dict[str, Any]], plan: Plan) -> tuple[SpeedResidual, ...]:
    from qserve.planner.speed.estimate import key_of

    def pairs(values: list[list[float]]) -> tuple[tuple[int, float], ...]:
        return tuple((int(size), factor) for size, factor in values)

    return tuple(
        SpeedResidual(
            key_of(plan),
            StepFactors(pairs(one["factors"]["decode"]), pairs(one["factors"]["prefill"]), one["factors"]["intake"]),
            one["num_requests"],
            one["run"],
        )
        for one in told
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["transformers", "vllm"], default=["transformers", "vllm"])
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "qwen3-1.7b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--input-len", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=24)
    parser.add_argument("--sets", type=int, default=2, help="rounds of every load; the first teaches")
    parser.add_argument("--compiled", action="store_true", help="let vLLM compile, which takes minutes on a CPU")
    parser.add_argument("--most-others", type=float, default=0.06, help="of the machine, in a round that counts")
    parser.add_argument("--most-drift", type=float, default=0.08, help="of a rate, over a round that counts")
    parser.add_argument("--most-tries", type=int, default=3, help="of a round")
    parser.add_argument("--most-minutes", type=float, default=7.0, help="until when rounds are taken again")
    parser.add_argument("--probe-seconds", type=float, default=0.08, help="for each figure of the CPU")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "qserve-speed-against-engines.jsonl")
    parser.add_argument("--resume", action="store_true", help="keep what --out has of whole engines and shapes")
    parser.add_argument("--again", type=Path, metavar="RECORD", help="measure nothing: the table of this record")
    arguments = parser.parse_args()
    if arguments.again:
        sys.exit(1 if show(arguments.again) else 0)
    if "vllm" in arguments.engines and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here (make setup): left out")
        arguments.engines.remove("vllm")
    # A benchmark that is told to stop must not leave its servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if not arguments.resume:
        arguments.out.unlink(missing_ok=True)
    session = Session(arguments)
    with tempfile.TemporaryDirectory(prefix="qserve-speed-") as states:
        for shape in arguments.shapes:
            folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{shape}", shape)
            for engine in arguments.engines:
                if keep_if_whole(arguments.out, engine, shape, arguments.sets * len(arguments.streams)):
                    continue
                subject = Subject(engine, shape, folder, Path(states) / f"{engine}-{shape}", not arguments.compiled)
                keep_rates(subject.kept, session.rates)
                session.run(subject)
    off = show(arguments.out)
    print(f"the record is {arguments.out}")
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
