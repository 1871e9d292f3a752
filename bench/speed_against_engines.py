"""Planned speed against real engines on this CPU: written down before, measured after, learned from, measured again.

    python bench/speed_against_engines.py                      # both engines, 0.6B and 1.7B shapes: about 15 minutes
    python bench/speed_against_engines.py --quick              # fewer tokens, and vLLM without compiling: 8 minutes
    python bench/speed_against_engines.py --shapes qwen3-0.6b --engines transformers --streams 1 4

Random weights in real shapes, served by `qserve up`, loaded by `qserve bench` in closed loops. The rates of the CPU are
measured first (`qserve doctor --measure`); then `qserve plan --no-learn` says what every load will take, and only then
a server is started. After the first rounds `qserve plan` has learned from that run, and its figures are held against
rounds that come later. A round in which others computed for more than --most-others of the machine, or around which its
memory read slower than --least-memory of its best, is taken again, as long as --most-minutes allow. Exit status 1 where
a figure is off by more than 15 %, after learning by more than 5 %.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bench.machine_load import MemoryProbe, OthersLoad
from bench.random_checkpoint import write_checkpoint
from bench.servers import Server, free_port, running, wait_ready

MAX_MODEL_LEN, MAX_NUM_SEQS = 1024, 16
BEFORE, LEARNED = 0.15, 0.05
METRICS = {"ttft_ms": "TTFT ms", "tpot_ms": "TPOT ms", "output_tokens_per_s": "tokens/s"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """A closed loop of `streams`: all of them `waves` times."""

    streams: int
    input_len: int
    output_len: int
    waves: int

    @property
    def num_prompts(self) -> int:
        return max(3, self.streams * self.waves)


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
            *(["--enforce-eager"] if self.is_eager and self.engine == "vllm" else []),
        ]  # fmt: skip

    def server(self) -> Server:
        """Plans without what earlier runs measured, as the first plan did."""
        port = free_port()
        command = [sys.executable, "-m", "qserve", "up", *self.flags, "--no-learn", "--no-ui", "--port", str(port)]
        return Server(self.engine, command, port, "bench", "/ready")


@dataclass(frozen=True)
class Row:
    """One figure of one load: planned, measured; `phase` before or learned."""

    engine: str
    shape: str
    streams: int
    phase: str
    metric: str
    planned: float
    low: float
    high: float
    measured: float
    rounds: tuple[float, ...]
    others: float

    @property
    def error(self) -> float:
        return self.planned / self.measured - 1


def qserve(*arguments: str, timeout_s: float = 300) -> str:
    """One command's standard output; ends the benchmark with what it said where it failed."""
    done = subprocess.run(
        [sys.executable, "-m", "qserve", *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        sys.exit(f"qserve {arguments[0]} failed ({done.returncode}):\n{done.stderr[-2000:]}")
    return done.stdout


def planned(subject: Subject, load: Load, learns: bool) -> dict[str, Any]:
    """The object `speed` of the plan."""
    more = [] if learns else ["--no-learn"]
    text = qserve(
        "plan", *subject.flags, "--input", str(load.input_len), "--output", str(load.output_len),
        "--concurrency", str(load.streams), "--num-prompts", str(load.num_prompts), "--json", *more,
    )  # fmt: skip
    speed: dict[str, Any] = json.loads(text)["speed"]
    return speed


def measured(server: Server, subject: Subject, load: Load, seed: int) -> tuple[Figures, float]:
    """One round, and the part of the machine that others had during it."""
    others = OthersLoad()
    text = qserve(
        "bench", "--url", server.url, "--endpoint", "completions", "--concurrency", str(load.streams),
        "--num-prompts", str(load.num_prompts), "--input-len", str(load.input_len), "--output-len",
        str(load.output_len), "--num-warmups", "0", "--seed", str(seed), "--json", "--state-dir", str(subject.state),
    )  # fmt: skip
    share, stage = others.share, json.loads(text)["stages"][0]
    figures = {
        "ttft_ms": stage["mean_ttft_ms"], "tpot_ms": stage["mean_tpot_ms"],
        "output_tokens_per_s": stage["output_throughput"],
    }  # fmt: skip
    return figures, share


class Session:
    """All rounds, and the file that they are written to as they come."""

    def __init__(self, arguments: argparse.Namespace, out: Path) -> None:
        self.arguments, self.out = arguments, out
        self.ends_at = time.monotonic() + 60 * arguments.most_minutes
        self.seed = arguments.seed
        self.rows: list[Row] = []
        self.memory = MemoryProbe()

    @property
    def loads(self) -> list[Load]:
        told = self.arguments
        return [Load(streams, told.input_len, told.output_len, told.waves) for streams in told.streams]

    def note(self, **what: Any) -> None:
        """A line of the record."""
        with self.out.open("a") as file:
            file.write(json.dumps({"at": time.strftime("%H:%M:%S"), **what}) + "\n")

    def run(self, subject: Subject) -> None:
        """Plan, start, measure, learn, measure."""
        before = self._plans(subject, learns=False)
        asyncio.run(self._served(subject, before))

    async def _served(self, subject: Subject, before: list[dict[str, Any]]) -> None:
        server, log = subject.server(), self.out.with_suffix(f".{subject.engine}-{subject.shape}.log")
        with running(server, log) as process:
            await wait_ready(server, process, log)
            for load in self.loads:  # kernels of these shapes are made once
                measured(server, subject, Load(load.streams, load.input_len, 4, 1), self._next_seed())
            self._phase(server, subject, "before", before)
            self._phase(server, subject, "learned", self._plans(subject, learns=True))

    def _plans(self, subject: Subject, learns: bool) -> list[dict[str, Any]]:
        found = []
        for load in self.loads:
            speed = planned(subject, load, learns)
            self.note(planned=speed, learns=learns, engine=subject.engine, shape=subject.shape, load=asdict(load))
            found.append(speed)
        return found

    def _phase(self, server: Server, subject: Subject, phase: str, plans: list[dict[str, Any]]) -> None:
        for load, speed in zip(self.loads, plans, strict=True):
            rounds = list(self._rounds(server, subject, load))
            for metric in METRICS:
                told = speed[metric]
                values = tuple(figures[metric] for figures, _ in rounds)
                row = Row(
                    subject.engine, subject.shape, load.streams, phase, metric, told.get("mean", told.get("value")),
                    told["low"], told["high"], statistics.median(values), values, max(share for _, share in rounds),
                )  # fmt: skip
                self.rows.append(row)
                self.note(**asdict(row), error=row.error)
                print(line_of(row), flush=True)

    def _rounds(self, server: Server, subject: Subject, load: Load) -> Iterator[tuple[Figures, float]]:
        """As many as asked for; one that others disturbed is taken again while there is time."""
        kept = 0
        while kept < self.arguments.rounds:
            memory = self.memory.share()
            figures, share = measured(server, subject, load, self._next_seed())
            memory = min(memory, self.memory.share())
            disturbed = share > self.arguments.most_others or memory < self.arguments.least_memory
            self.note(
                round=figures, others=share, memory=memory, engine=subject.engine, shape=subject.shape,
                streams=load.streams,
            )  # fmt: skip
            if disturbed and time.monotonic() < self.ends_at:
                print(f"  others had {share:.0%} of the machine, memory read at {memory:.0%} of its best: taken again")
                continue
            kept += 1
            yield figures, share

    def _next_seed(self) -> int:
        """Prompts of their own for each round: no prefix is in the cache."""
        self.seed += 1
        return self.seed


def line_of(row: Row) -> str:
    """A row of a Markdown table."""
    mark = "" if abs(row.error) <= (BEFORE if row.phase == "before" else LEARNED) else " !"
    each = ", ".join(f"{value:.1f}" for value in row.rounds)
    inside = "" if row.low <= row.measured <= row.high else ", outside"
    return (
        f"| {row.engine} | {row.shape} | {row.streams} | {row.phase} | {METRICS[row.metric]} | {row.planned:.1f} "
        f"({row.low:.1f} to {row.high:.1f}{inside}) | {row.measured:.1f} ({each}) | {100 * row.error:+.1f} %{mark} "
        f"| {100 * row.others:.0f} % |"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", choices=["transformers", "vllm"], default=["transformers", "vllm"])
    parser.add_argument("--shapes", nargs="+", default=["qwen3-0.6b", "qwen3-1.7b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--waves", type=int, default=2, help="requests a stream")
    parser.add_argument("--quick", action="store_true", help="16 tokens an answer, one round, --eager")
    parser.add_argument("--eager", action="store_true", help="vLLM without compiling, which takes minutes on a CPU")
    parser.add_argument("--most-others", type=float, default=0.06, help="of the machine, in a round that counts")
    parser.add_argument("--least-memory", type=float, default=0.85, help="of its best rate, around a round that counts")
    parser.add_argument("--most-minutes", type=float, default=20.0, help="until when rounds are taken again")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**6)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "qserve-speed-against-engines.jsonl")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.output_len, arguments.rounds, arguments.most_minutes = 16, 1, min(arguments.most_minutes, 6.0)
    if "vllm" in arguments.engines and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed here (make setup): left out")
        arguments.engines.remove("vllm")
    # A benchmark that is told to stop must not leave its servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    arguments.out.unlink(missing_ok=True)
    session = Session(arguments, arguments.out)
    print("| engine | shape | streams | | | planned (band) | measured (rounds) | error | others |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="qserve-speed-") as states:
        rates = Path(states) / "rates"
        told = json.loads(qserve("doctor", "--measure", "--json", "--state-dir", str(rates)))
        machine = next(one for one in told["checks"] if "measured" in one["name"])
        session.note(machine=machine)
        for shape in arguments.shapes:
            folder = write_checkpoint(Path(tempfile.gettempdir()) / f"qserve-random-{shape}", shape)
            for engine in arguments.engines:
                state = Path(states) / f"{engine}-{shape}"
                shutil.copytree(rates, state)
                session.run(Subject(engine, shape, folder, state, arguments.quick or arguments.eager))
    off = [row for row in session.rows if abs(row.error) > (BEFORE if row.phase == "before" else LEARNED)]
    print(
        f"\nThe CPU: {machine['found']}\n{len(off)} of {len(session.rows)} figures are further off than {BEFORE:.0%} "
        f"before, {LEARNED:.0%} after learning; the record is {arguments.out}"
    )
    sys.exit(1 if off else 0)


if __name__ == "__main__":
    main()
