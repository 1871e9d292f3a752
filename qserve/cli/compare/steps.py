"""The steps of `qserve compare`: all checks, then each quantization measured, then files and run store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from qserve.cli.compare.show import picture_of
from qserve.cli.progress import ProgressLine
from qserve.cli.up.check_start import check_start
from qserve.cli.writable import check_folder_writable
from qserve.errors import UsageError
from qserve.evaluation.comparison.compare import (
    Candidate,
    advice,
    answers_folder,
    candidates_of,
    is_complete,
    measure,
    recommended,
    summary_of,
    unscorable_in,
)
from qserve.evaluation.comparison.questions import Questions
from qserve.library.own_server import own_server
from qserve.runs import RunStore, StoreUnusable

__all__ = ["Compared", "Comparing"]

_ASKED = "asked.json"


@dataclass(frozen=True)
class Compared:
    """A comparison that is finished; `document` is what its file and the run store hold."""

    title: str
    names: tuple[str, ...]
    folder: Path
    candidates: Sequence[Candidate]
    document: dict[str, Any]

    @property
    def recommended(self) -> str | None:
        """The quantization to use; None where no task has right or wrong answers."""
        best: str | None = self.document["recommended"]
        return best

    @property
    def chart(self) -> Path:
        return self.folder / "pareto.svg"

    @property
    def figures(self) -> Path:
        return self.folder / "comparison.json"

    def unscorable(self, max_share: float) -> list[str]:
        """A sentence for each task of which more than `max_share` of the items can't be scored."""
        return unscorable_in(self.candidates, max_share)

    def write(self) -> None:
        """The chart and the figures."""
        self.chart.write_text(picture_of(self.title, self.candidates))
        self.figures.write_text(json.dumps(self.document, indent=1, ensure_ascii=False))

    def keep(self, state: Path) -> None:
        """Add it to the run store."""
        try:
            RunStore.open(state).add_comparison(self.document, name=", ".join(self.names))
        except StoreUnusable as error:
            click.echo(f"note: the comparison is not in the run store ({error}); its folder is complete", err=True)


@dataclass(frozen=True)
class Comparing:
    """What all quantizations share; `serve` are the arguments of `qserve up` but for the quantization at their end.

    `made`: arguments of checkpoints that are compared as they are stored, by the names that they have in `names`.
    """

    names: tuple[str, ...]
    serve: Sequence[str]
    questions: Questions
    folder: Path
    state_dir: Path | None
    line: ProgressLine
    made: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def arguments(self, name: str) -> list[str]:
        """Of `qserve up`, for one of `names`."""
        return list(self.made[name]) if name in self.made else [*self.serve, name]

    def check(self, settings: dict[str, Any]) -> None:
        """Refuse what any of the quantizations would be refused for, before the first is measured.

        `settings` tell this comparison from others.
        """
        for name in self.names:
            folder = self.folder / name
            check_folder_writable(folder)
            _check_same(folder, settings)
            if is_complete(folder):
                candidates_of([folder])
            else:
                self.line.phase(f"planning {name}")
                check_start(self.arguments(name), self.state_dir, f"{name}: ")
        for name in self.names:
            (self.folder / name / _ASKED).write_text(json.dumps(settings))

    def measure(self) -> None:
        """Start and measure each that was not measured before."""
        for number, name in enumerate(self.names, 1):
            where = f"{number} of {len(self.names)} · {name}"
            if is_complete(self.folder / name):
                click.echo(f"{where}: measured before (to measure again, name another folder with --out)", err=True)
            else:
                self._measure(name, where)

    def _measure(self, name: str, where: str) -> None:
        folder, line = self.folder / name, self.line
        line.phase(f"{where}: starting")
        with own_server(self.arguments(name), folder / "up.log", self.state_dir, "compare") as server:
            click.echo(f"{where}: ready after {server.start_s:.1f} s", err=True)
            measure(
                self.questions,
                name,
                (server.url, server.api_key),
                folder,
                server.start_s,
                lambda what: line.phase(f"{where}: {what}"),
                line.count,
            )
            line.phase(f"{where}: stopping")

    def finished(self, title: str, prices: dict[str, Any] | None) -> Compared:
        """The comparison, written to its files."""
        candidates = candidates_of([self.folder / name for name in self.names], prices)
        best = recommended(candidates)
        document = {
            "title": title,
            "advice": advice(candidates),
            "recommended": None if best is None else best.quant,
            "candidates": [summary_of(one) for one in candidates],
        }
        done = Compared(title, self.names, self.folder, candidates, document)
        done.write()
        return done


def _check_same(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse to continue in a folder with figures or answers that were measured with other settings."""
    file = folder / _ASKED
    if _has_measurements(folder) and file.is_file() and json.loads(file.read_text()) != settings:
        raise UsageError(f"{folder} contains another comparison ({file.read_text()}); name another folder with --out")


def _has_measurements(folder: Path) -> bool:
    """Whether there is anything to keep: a result, or the answers of a run that was interrupted."""
    cache = answers_folder(folder)
    return is_complete(folder) or (cache.is_dir() and any(cache.iterdir()))
