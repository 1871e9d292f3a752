"""All rows of a source, once through: those that can be trained on to TRL's own format, the others named and counted.

What is written is what is trained on: `train.jsonl` and `test.jsonl`, which `datasets` maps from disk, so that neither
this pass nor training ever holds the data in memory. The split is by prompt: no prompt stands on both sides.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.rows.fields import told_unread
from qserve.training.data.columns import Columns
from qserve.training.data.read import rows_in
from qserve.training.data.rows import Row, RowError, Tie, answers_of, preferences_of, prompt_of
from qserve.training.data.scores import labels_of, scored_of
from qserve.training.job import DataSource

__all__ = ["BROKEN", "PreparedData", "check_source", "prepare", "prepared", "source_of"]

_SHOWN = 5
_CHECKED = 20
_KEPT_BROKEN = 1000
# Below this many rows a share of broken ones says little: one is told, not refused.
_LEAST_BROKEN = 2
_ABOUT = "data.json"
BROKEN = "broken.jsonl"
"""Below the run's folder: where the rows lie that can't be trained on, and why."""


@dataclass(frozen=True)
class PreparedData:
    """`num_rows` of the source; of them `num_broken` are left out. `columns` are those of train.jsonl but the place.

    `num_masked` are rows whose every answer is marked as left out of the loss, `num_ties` pairs of equal sides: neither
    is trained on. `unread` counts the fields of the source that nothing reads, and `unwritten` those that the chat
    template does not write.
    """

    num_rows: int
    num_train: int
    num_eval: int
    num_broken: int
    columns: tuple[str, ...]
    sha256: str
    num_masked: int = 0
    num_ties: int = 0
    unread: Mapping[str, int] = field(default_factory=dict)
    unwritten: Mapping[str, int] = field(default_factory=dict)

    @property
    def told(self) -> str:
        """For people, in one line."""
        left_out = {
            "broken rows": self.num_broken,
            "rows without an answer in the loss": self.num_masked,
            "ties (chosen and rejected are the same)": self.num_ties,
        }
        told = "".join(f", {count:,} {what} left out" for what, count in left_out.items() if count)
        return f"{self.num_train:,} rows to train on, {self.num_eval:,} held out{told}"

    @property
    def notes(self) -> list[str]:
        """What of the source is not in what is trained on, though it may have been meant to be."""
        notes = [note] if (note := told_unread(self.unread)) else []
        if self.unwritten:
            named = ", ".join(f"{name!r} of {count:,} rows" for name, count in sorted(self.unwritten.items()))
            notes.append(f"the chat template does not write {named}")
        return notes


def prepare(
    source: DataSource, trainer: str, folder: Path, run_folder: Path, template: str | None = None
) -> PreparedData:
    """Writes `folder`/train.jsonl and test.jsonl with their columns' types, and `run_folder`/broken.jsonl, the latter
    also where it raises.

    `template` is the model's chat template, where it is known. Raises UsageError where nothing is left to train on, or
    more rows than allowed are broken, or the template knows no tools and the rows have some.
    """
    fresh = folder.with_name(f".{folder.name}-fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    run_folder.mkdir(parents=True, exist_ok=True)
    try:
        found = _Pass(source, trainer, fresh).run()
        _refuse(found, source, run_folder / BROKEN)
        found.kept.refuse_unwritten(template)
    finally:
        (run_folder / BROKEN).unlink(missing_ok=True)
        if (fresh / BROKEN).exists():
            shutil.move(fresh / BROKEN, run_folder / BROKEN)
    found.kept.write(fresh)
    about = found.about(fresh, template)
    (run_folder / _ABOUT).write_text(json.dumps(asdict(about), indent=2) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    fresh.rename(folder)
    return about


def check_source(path: str, method: str, asked: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The first rows of what is to be read, before anything is planned; what their scores are called, where they have
    some that a reward model is trained on (`asked`: --labels), else nothing.

    Raises UsageError where nothing is there, or none of them can be trained on by `method`.
    """
    broken: list[str] = []
    for raw in islice(rows_in(path), _CHECKED):
        try:
            if raw.error is not None:
                raise RowError(raw.error)
            labels = labels_of(raw.data, asked) if method == "reward" else ()
            _converter("sft" if method in ("lora", "qlora") else method, labels)(raw.data, None)
        except RowError as error:
            broken.append(f"{raw.place}: {error}")
        else:
            return labels
    if not broken:
        raise UsageError(f"{path} has no rows")
    told = "".join(f"\n  {line}" for line in broken[:_SHOWN])
    raise UsageError(f"none of the first {len(broken)} rows can be trained on by {method}:{told}")


def prepared(run_folder: Path) -> PreparedData | None:
    """What an earlier pass made; None where there was none."""
    file = run_folder / _ABOUT
    if not file.exists():
        return None
    data = json.loads(file.read_text())
    return PreparedData(**{**data, "columns": tuple(data["columns"])})


def source_of(folder: Path, row: int, split: str = "train") -> str:
    """FILE:LINE of the row with this number in `split`.jsonl."""
    with (folder / f"{split}.jsonl").open() as stream:
        for line in stream:
            data = json.loads(line)
            if data["row"] == row:
                return str(data["source"])
    return f"row {row}"


class _Pass:
    """One pass over the source; the counts are its results."""

    def __init__(self, source: DataSource, trainer: str, folder: Path) -> None:
        self.source, self.folder = source, folder
        self._convert = _converter(trainer, source.labels)
        self.num_rows = self.num_broken = self.num_masked = self.num_ties = 0
        self.num = {"train": 0, "test": 0}
        self.kept = Columns()
        self.unread: Counter[str] = Counter()
        self.shown: list[str] = []

    def run(self) -> _Pass:
        with ExitStack() as stack:
            self._files = {
                name: stack.enter_context((self.folder / f"{name}.jsonl").open("w"))
                for name in ("train", "test", "broken")
            }
            self._read(self.source.path, "train", self.source.eval_share if self.source.eval_path is None else 0.0)
            if self.source.eval_path is not None:
                self._read(self.source.eval_path, "test", 0.0)
        if not self.num["test"]:
            (self.folder / "test.jsonl").unlink()
        if not self.num_broken:
            (self.folder / BROKEN).unlink()
        return self

    def about(self, folder: Path, template: str | None) -> PreparedData:
        digest = hashlib.sha256()
        with (folder / "train.jsonl").open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
        return PreparedData(
            self.num_rows,
            self.num["train"],
            self.num["test"],
            self.num_broken,
            self.kept.names,
            digest.hexdigest(),
            self.num_masked,
            self.num_ties,
            dict(self.unread),
            self.kept.unwritten(template),
        )

    def _read(self, path: str, split: str, held_out_share: float) -> None:
        for raw in rows_in(path):
            self.num_rows += 1
            unread: Counter[str] = Counter()
            try:
                if raw.error is not None:
                    raise RowError(raw.error)
                made = self._convert(raw.data, unread)
                self.kept.add(made)
            except Tie:
                self.num_ties += 1
                continue
            except RowError as error:
                self._broken(raw.place, str(error))
                continue
            self.unread.update(unread)
            self.num_masked += not made
            self._write(made, "test" if made and _is_held_out(made[0], held_out_share) else split, raw.place)

    def _write(self, made: list[Row], name: str, place: str) -> None:
        for row in made:
            self.num[name] += 1
            line = {**row, "row": self.num[name], "source": place}
            self._files[name].write(json.dumps(line, ensure_ascii=False) + "\n")

    def _broken(self, place: str, why: str) -> None:
        self.num_broken += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(f"{place}: {why}")
        if self.num_broken <= _KEPT_BROKEN:
            self._files["broken"].write(json.dumps({"source": place, "why": why}, ensure_ascii=False) + "\n")


def _refuse(found: _Pass, source: DataSource, broken: Path) -> None:
    if not found.num_rows:
        raise UsageError(f"{source.path} has no rows")
    share = found.num_broken / found.num_rows
    told = "".join(f"\n  {line}" for line in found.shown)
    told += f"\n  and more in {broken}" if found.num_broken > len(found.shown) else ""
    is_too_many = share > source.max_broken_share and found.num_broken >= _LEAST_BROKEN
    others = {"have no answer in the loss": found.num_masked, "are ties": found.num_ties}
    beside = "".join(f", {count:,} {what}" for what, count in others.items() if count)
    if is_too_many or not found.num["train"]:
        raise UsageError(
            f"{found.num_broken:,} of {found.num_rows:,} rows are broken ({100 * share:.1f} %, allowed are "
            f"{100 * source.max_broken_share:g} %: --max-broken){beside}, {found.num['train']:,} are left to train "
            f"on:{told}"
        )


def _is_held_out(row: Mapping[str, Any], share: float) -> bool:
    """By the prompt's hash: the same prompt is always on the same side, whatever else the file holds."""
    prompt = row.get("prompt", row.get("chosen", row.get("text")))
    digest = hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:8]) < share * 2**64


Convert = Callable[[Mapping[str, Any], Counter[str] | None], list[Row]]


def _one(convert: Callable[[Mapping[str, Any], Counter[str] | None], Row]) -> Convert:
    return lambda row, unread: [convert(row, unread)]


def _converter(trainer: str, labels: tuple[str, ...]) -> Convert:
    """`labels`: of the scores that rows have in place of pairs."""
    return _one(lambda row, unread: scored_of(row, labels, unread)) if labels else _CONVERTERS[trainer]


_CONVERTERS: dict[str, Convert] = {
    "sft": answers_of,
    "reward": preferences_of,
    "dpo": preferences_of,
    "grpo": _one(prompt_of),
}
