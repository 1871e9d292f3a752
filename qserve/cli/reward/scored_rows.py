"""Scores the records of a file and writes each row as soon as it has its rewards."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import click

from qserve.cli.interrupted import INTERRUPTED, sigterm_as_ctrl_c
from qserve.cli.options.given_flags import given_words, refuse_flags
from qserve.cli.progress import ProgressLine
from qserve.cli.reward.options import LOADING_FLAGS, REWARD_FLAGS
from qserve.cli.reward.rows import by_record, row_of
from qserve.cli.reward.rows_file import RowsFile, RowsOut, fingerprint
from qserve.cli.reward.served_source import SERVER_FLAGS, ServedRewards
from qserve.cli.reward.source import opened_rewards
from qserve.cli.reward.texts import Answered, Parts, Rewards, TextToScore, texts_of
from qserve.errors import QserveError, UsageError
from qserve.reward.evaluation.records import Record

__all__ = ["Failures", "ScoreRequest", "Written", "check_which_reward", "kept_if_stopped", "rows_in", "write_rows"]

_MOST_TOLD = 10


@dataclass(frozen=True)
class ScoreRequest:
    """What `score` and `eval-reward` score, and with what."""

    file: Path
    reward: str
    url: str | None
    model: str | None
    api_key: str | None
    concurrency: int
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        """Of what scores, for people."""
        return self.url or self.reward

    def words(self, *, has_loading: bool = True) -> list[str]:
        """The flags, as given, by which another command asks the same rewards; those of loading where it has them."""
        source = ["--url", self.url] if self.url is not None else ["--reward", self.reward]
        return [*source, *given_words((*SERVER_FLAGS, *REWARD_FLAGS, *(LOADING_FLAGS if has_loading else ())))]

    def about(self) -> dict[str, Any]:
        """What rewards depend on, by what people call it: a run that is continued must have the same."""
        settings = {f"--{name.replace('_', '-')}": self.values[name] for name in (*REWARD_FLAGS, *LOADING_FLAGS)}
        served = {"--url": self.url, "--model": self.model}
        loaded = {"--reward": self.reward, "the checkpoint": fingerprint(self.reward), **settings}
        content = hashlib.sha256(self.file.read_bytes()).hexdigest()
        return {"the input": content, **(served if self.url is not None else loaded)}


@dataclass
class Failures:
    """Lines without rewards, with the reason; the first ten are told as they come."""

    lines: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, error: str) -> None:
        """Keep one, and tell it."""
        self.lines.append((line, error))
        if len(self.lines) <= _MOST_TOLD:
            click.echo(f"line {line} is left out: {error}", err=True)
        elif len(self.lines) == _MOST_TOLD + 1:
            click.echo("more lines are left out; their number follows at the end", err=True)

    def add_kept(self, records: Sequence[Record], rows: Sequence[Mapping[str, Any]]) -> None:
        """Those of an earlier run, which told them."""
        kept = zip(records, rows, strict=False)
        self.lines += [(record.line, row["error"]) for record, row in kept if "error" in row]

    def to_json(self) -> list[dict[str, Any]]:
        """The fields."""
        return [{"line": line, "error": error} for line, error in self.lines]


@dataclass(frozen=True)
class Written:
    """`meta`: what scores; empty where no text was left to score. `duration_s` is without the load."""

    meta: Mapping[str, Any]
    duration_s: float


@dataclass(frozen=True)
class Source:
    """What computes rewards. `meta` says how."""

    rewards: Rewards
    meta: Mapping[str, Any]


def check_which_reward(url: str | None) -> None:
    """Refuse flags of a model that is loaded here together with a server's."""
    if url is not None:
        flags = ("reward", *REWARD_FLAGS, *LOADING_FLAGS)
        refuse_flags(flags, "a server loaded its model already; leave it out, or leave --url out")
    else:
        refuse_flags(SERVER_FLAGS, "for a server; name one with --url, or leave it out")


def rows_in(
    request: ScoreRequest, output: Path, records: Sequence[Record], settings: Mapping[str, Any], *, resume: bool
) -> RowsFile:
    """The file that rows go to; `settings` are what they depend on besides. Raises UsageError as RowsFile."""
    if output.exists() and request.file.exists() and output.samefile(request.file):
        raise UsageError(f"--output {output} is the input itself; name another file")
    file = RowsFile(output, {**request.about(), **settings}, resume=resume)
    if file.num_written > len(records):
        raise UsageError(f"{output} has {file.num_written:,} rows, and {request.file} {len(records):,} lines")
    rest = records[file.num_written :]
    file.check_room(request.file.stat().st_size * len(rest) // len(records), sum(len(one.contents) for one in rest))
    return file


@contextlib.contextmanager
def _opened(request: ScoreRequest, line: ProgressLine) -> Iterator[Source]:
    """The server that is named; else a model or recipe, loaded here."""
    if request.url is None:
        with opened_rewards(request.reward, dict(request.values), line) as (rewards, meta):
            yield Source(rewards, meta)
        return
    server = ServedRewards(request.url, request.model, request.api_key, request.concurrency)
    yield Source(server, server.meta)


def write_rows(
    request: ScoreRequest,
    records: Sequence[Record],
    out: RowsOut,
    line: ProgressLine,
    failures: Failures,
    on_answers: Callable[[Record, list[Answered]], None],
    *,
    normalize: bool = False,
    is_strict: bool = False,
) -> Written:
    """Score the records after those that `out` has from before, and write their rows.

    `on_answers` is called for each record once its row is written. Nothing is loaded where no text is left. Strict:
    raises UsageError at the first record without rewards. Call it in a block of `kept_if_stopped`.
    """
    rest = records[len(out.kept) :]
    with contextlib.ExitStack() as stack:
        source = Source(_no_parts, {})
        if any(record.contents for record in rest):
            source = stack.enter_context(_opened(request, line))
        line.phase(f"scoring {request.file.name}")
        line.begin_at(len(out.kept))
        began_s = time.monotonic()
        parts = stack.enter_context(contextlib.closing(source.rewards(texts_of(rest))))
        first = [part for part in [next(parts, None)] if part is not None]  # a server's `meta` comes with it
        scale = _scale(source.meta, normalize)
        out.begin(source.meta or None)
        for ready in by_record(rest, chain(first, parts)):
            _write(ready, out, failures, scale, is_strict=is_strict)
            line.count(out.num_written, len(records))
            for record, answers in ready:
                on_answers(record, answers)
    return Written(source.meta, time.monotonic() - began_s)


def _no_parts(_: Sequence[TextToScore]) -> Parts:
    """Where no text is left."""
    yield from ()


def _write(
    ready: Sequence[tuple[Record, list[Answered]]],
    out: RowsOut,
    failures: Failures,
    scale: tuple[float, float],
    *,
    is_strict: bool,
) -> None:
    rows = [row_of(record, answers, scale) for record, answers in ready]
    bad = [place for place, row in enumerate(rows) if "error" in row]
    if bad and is_strict:
        out.append(rows[: bad[0]])
        why = f"line {ready[bad[0]][0].line} can't be scored: {rows[bad[0]]['error']}"
        raise UsageError(f"{why}; without --strict it is left out and the others are scored")
    out.append(rows)
    for place in bad:
        failures.add(ready[place][0].line, rows[place]["error"])


def _scale(meta: Mapping[str, Any], normalize: bool) -> tuple[float, float]:
    if not normalize or not meta:
        return 0.0, 1.0
    if meta.get("mean") is None or not meta.get("std"):
        raise UsageError("--normalize: the checkpoint records no mean and standard deviation of its rewards")
    return meta["mean"], meta["std"]


@contextlib.contextmanager
def kept_if_stopped(out: RowsOut, num_rows: int) -> Iterator[None]:
    """After Ctrl-C, SIGTERM or an error in the block, say what is kept and how it continues; else `out` is finished."""
    try:
        with sigterm_as_ctrl_c():
            yield
            out.finish()
    except KeyboardInterrupt:
        click.echo(f"interrupted; {out.kept_text(num_rows)}", err=True)
        sys.exit(INTERRUPTED)
    except QserveError as error:
        if out.num_written:
            error.args = (f"{error}; {out.kept_text(num_rows)}",)
        raise
