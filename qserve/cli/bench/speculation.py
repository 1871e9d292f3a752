"""`qserve bench --compare-spec`: a model served without drafts and with each way to draft, under the same loads."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.bench.speculation import Drafted, LoadKey, Setting, Verdict, verdict_of
from qserve.cli.bench.request import BenchFlags, Inputs, client_of, inputs_of, source_of
from qserve.cli.options.given_flags import given
from qserve.cli.progress import ProgressLine, progress_line
from qserve.cli.up.check_start import check_start
from qserve.errors import DoesNotFit, QserveError, UsageError, WorkerFailed
from qserve.hub import resolve
from qserve.library.own_server import OwnServer, own_server, up_arguments
from qserve.state_folder import state_folder

if TYPE_CHECKING:
    from qserve.bench.result import BenchResult
    from qserve.bench.session import Session

__all__ = ["Compared", "compare_speculation", "written"]

_STREAMS = (1, 8, 32)
_LONGER = 4
"""The second prompt is so many times as long as the first."""
_WARM_UP = 4
_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_OTHER_LOADS = ("url", "endpoint", "request_rate", "sweep", "csv_file", "self_test", "shared_prefix_len")
PLAIN = "no drafts"


@dataclass(frozen=True)
class Compared:
    """All that was measured. `skipped` says of each way to draft that could not be served why."""

    model: str
    serve: tuple[str, ...]
    plain: Setting
    others: tuple[Setting, ...]
    skipped: tuple[str, ...]
    verdict: Verdict
    is_synthetic: bool

    @property
    def next_command(self) -> str:
        """Serves it as the verdict says."""
        return shlex.join(["qserve", "up", *self.serve, *self.verdict.flags])

    def to_json(self) -> dict[str, Any]:
        """The object of --json and of the result's file."""
        return {
            "object": "speculation",
            "model": self.model,
            "settings": [one.to_json() for one in (self.plain, *self.others)],
            "skipped": list(self.skipped),
            "verdict": {**vars(self.verdict), "next_command": self.next_command},
        }


def compare_speculation(
    flags: BenchFlags, model: str | None, tokens: int, up_args: str, state: Path | None
) -> Compared:
    """Starts the model once for each way to draft, one after the other, and measures each.

    Raises UsageError for flags of another load and for a model that can't be served without drafts.
    """
    if others := given(_OTHER_LOADS):
        raise UsageError(f"{', '.join(others)}: --compare-spec starts servers itself, under closed loops of chats")
    if model is None:
        raise UsageError("--compare-spec needs --model: a folder, a hub id or demo, as `qserve up` takes it")
    words = up_arguments(up_args)
    serve = ("--model", model, *([] if "--engine" in words else ["--engine", "vllm"]), *words)
    inputs = inputs_of(flags)
    ways = [(PLAIN, ()), *_ways(model, tokens)]
    with progress_line() as line:
        settings, skipped = [], []
        for name, drafting in ways:
            try:
                line.phase(f"planning {name}")
                check_start([*serve, *drafting], state)
                settings.append(_Measuring(flags, inputs, line, (*serve, *drafting), state).setting(name, drafting))
            except (UsageError, DoesNotFit, WorkerFailed) as error:
                if not drafting:
                    raise
                skipped.append(f"{name}: {str(error).splitlines()[0]}")
    plain, *drafted = settings
    verdict = verdict_of(plain, drafted)
    return Compared(model, serve, plain, tuple(drafted), tuple(skipped), verdict, inputs.entries is None)


def _ways(model: str, tokens: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Every way to draft that a plan counts and that the checkpoint has."""
    yield f"n-grams, {tokens}", ("--num-ngram-tokens", str(tokens))
    if resolve(model).spec.mtp_layers:
        yield f"MTP head, {tokens}", ("--num-speculative-tokens", str(tokens))


@dataclass(frozen=True)
class _Measuring:
    """One server, and the loads on it."""

    flags: BenchFlags
    inputs: Inputs
    line: ProgressLine
    serve: Sequence[str]
    state: Path | None

    def setting(self, name: str, drafting: tuple[str, ...]) -> Setting:
        self.line.phase(f"{name}: starting")
        log = state_folder(self.state) / "bench" / f"{time.strftime('%Y%m%d-%H%M%S')}-up.log"
        with own_server(list(self.serve), log, self.state, "bench") as server:
            self.line.phase(f"{name}: warming up")
            self._warm_up(server)
            loads = {}
            for key in self._keys():
                self.line.phase(f"{name}: {_prompt(key.input_len)}, {key.streams} at once")
                loads[key], run = self._load(key, server)
            self.line.phase(f"{name}: stopping", is_short=True)
        return Setting(name, drafting, loads, run)

    def _keys(self) -> list[LoadKey]:
        length = self.flags.input_len
        lengths = (length, _LONGER * length) if self.inputs.entries is None else (None,)
        return [LoadKey(one, int(streams)) for one in lengths for streams in self.flags.concurrency or _STREAMS]

    def _warm_up(self, server: OwnServer) -> None:
        """What is compiled at its first use (the search for n-grams, the check of drafts) is in no figure."""
        heaviest = max(self._keys(), key=lambda one: (one.input_len or 0, one.streams))
        num_prompts = max(_WARM_UP, heaviest.streams)
        flags = replace(self.flags, num_prompts=num_prompts, duration=None, seed=self.flags.seed + 1)
        _run(flags, self.inputs, heaviest, server)

    def _load(self, key: LoadKey, server: OwnServer) -> tuple[Drafted, str]:
        """One closed loop. Raises WorkerFailed where nothing came of it."""
        before = _counted(server)
        session, result = _run(self.flags, self.inputs, key, server)
        figures = result.figures[0] if result.figures else None
        if figures is None or not figures.completed:
            raise WorkerFailed(f"no request was answered: {session.gone or _first_error(result)}")
        _keep(result, state_folder(self.state))
        counted = [now - was for now, was in zip(_counted(server), before, strict=True)]
        ttft, tpot = (one.p50 if one.num_values else None for one in (figures.ttft, figures.tpot))
        return Drafted(figures.output_throughput, ttft, tpot, *counted), str(result.server["run"])


def _prompt(input_len: int | None) -> str:
    return "prompts of the file" if input_len is None else f"prompts of {input_len:,} tokens"


def _run(flags: BenchFlags, inputs: Inputs, key: LoadKey, server: OwnServer) -> tuple[Session, BenchResult]:
    """Prompts are the same for each setting, and others for each load: no cache of prefixes helps the later ones."""
    from qserve.bench.connection import Address
    from qserve.bench.counting import counter_of
    from qserve.bench.load import Stage
    from qserve.bench.result import BenchResult
    from qserve.bench.session import LoadPlan, run_session
    from qserve.bench.target import inspect_target

    length = key.input_len or flags.input_len
    flags = replace(flags, url=server.url, api_key=server.api_key, input_len=length, model=None)
    address = Address.of(server.url)
    target = inspect_target(address, server.api_key, None, False, True)
    counter = inputs.counter or counter_of(address, server.api_key, target.model, None)
    with contextlib.closing(counter) if inputs.counter is None else contextlib.nullcontext():
        stage = Stage(concurrency=key.streams, num_prompts=flags.num_prompts, duration_s=flags.duration)
        plan = LoadPlan((stage,), num_warmups=flags.num_warmups, seed=flags.seed + 1_000 * length + key.streams)
        source = source_of(flags, inputs.entries, counter)
        client = client_of(target, flags, inputs.extra, counter)

        async def run() -> Session:
            return await run_session(client, plan, source, asyncio.Event())

        session = asyncio.run(run())
    found = BenchResult(
        session.began_unix_s,
        {"url": server.url, "model": target.model, "engine": target.engine, "run": target.run_id},
        {"endpoint": flags.endpoint, "input_len": length, "output_len": flags.synthetic_len, "seed": plan.seed},
        session.runs,
        session.figures,
        None,
        {"cpu_s": sum(one.cpu_s for one in session.runs)},
        session.notes,
    )
    return session, found


def _counted(server: OwnServer) -> list[int]:
    """vLLM's counters of drafts, drafted and accepted tokens; zeros where it does not draft."""
    from qserve.client.http import ask
    from qserve.client.metrics import samples_of, total

    answer = ask("GET", f"{server.url}/metrics", api_key=server.api_key, timeout_s=30, by_proxy=False)
    prefix = "vllm:spec_decode_"
    samples = samples_of(answer.body.decode(), prefix)
    return [int(total(samples, f"{prefix}{name}_total") or 0) for name in _COUNTERS]


def _first_error(result: BenchResult) -> str:
    sentences = [one for figures in result.figures for one in figures.error_sentences.values()]
    return sentences[0] if sentences else "nothing came back"


def _keep(result: BenchResult, state: Path) -> None:
    """Beside the run that was measured."""
    from qserve.runs import RunStore

    try:
        run = str(result.server["run"])
        name = ", ".join(one.stage.name for one in result.figures)
        RunStore.open(state).add_bench(result.to_json(with_requests=False), name=name, run=run)
    except QserveError as error:
        click.echo(f"note: not kept in the run store: {error}", err=True)


def written(compared: Compared, file: Path) -> None:
    """The comparison as JSON. Raises UsageError where it can't be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(compared.to_json(), ensure_ascii=False, indent=1) + "\n")
    except OSError as error:
        raise UsageError(f"{file} can't be written: {error.strerror}") from error
