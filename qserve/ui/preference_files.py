"""A file of answers to score: JSONL, CSV or Parquet in, the same file with rewards out."""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qserve.charts.scale import nice_step
from qserve.csv_cells import read_cell, written_cell
from qserve.errors import UsageError
from qserve.reward.evaluation.records import Record, read_records
from qserve.rows.columnar import as_written
from qserve.ui.client.api import Api, ApiFailure

__all__ = ["ScoredFile", "read_file", "score_records"]

_TEXTS_A_REQUEST = 64
_NUM_COLUMNS = 20
KINDS = (".jsonl", ".csv", ".parquet")


@dataclass(frozen=True)
class ScoredFile:
    """Records of a file and their rewards, as far as they are known: one tuple a record."""

    records: tuple[Record, ...]
    rewards: tuple[tuple[float, ...], ...]

    @property
    def margins(self) -> list[float]:
        """Of each record that states a preference: the worst chosen reward less the best rejected one."""
        return [
            margin
            for record, rewards in zip(self.records, self.rewards, strict=False)
            if (margin := _margin(record, rewards)) is not None
        ]

    @property
    def accuracy(self) -> float | None:
        """Share of preferences with a margin above zero; a tie counts half."""
        margins = self.margins
        return sum(0.5 if one == 0 else float(one > 0) for one in margins) / len(margins) if margins else None

    def columns(self) -> tuple[list[float], list[int], int | None]:
        """Edges and counts of a histogram of the margins (of the rewards where there are none), and where zero is."""
        values = self.margins or [reward for rewards in self.rewards for reward in rewards]
        low, high = min(values), max(values)
        step = nice_step(high - low or 1.0, _NUM_COLUMNS)
        if not self.margins:
            first = math.floor(low / step)
            num_columns = max(1, math.floor(high / step) + 1 - first)
            edges = [step * (first + index) for index in range(num_columns + 1)]
            return edges, _counted(values, edges[0], step, num_columns), None
        # Zero is an edge, so that no column holds both hits and misses.
        before = max(0, -int(low // step))
        after = max(1, int(high // step) + 1)
        edges = [step * index for index in range(-before, after + 1)]
        return edges, _counted(values, edges[0], step, before + after), before

    def write(self, file: Path) -> None:
        """The records with their rewards, in the format that the file's name ends with."""
        rows = [
            {**record.data, **_scored_row(record, rewards)}
            for record, rewards in zip(self.records, self.rewards, strict=True)
        ]
        if file.suffix == ".parquet":
            _parquet("writing a Parquet file").write_table(_table(rows), file)
        elif file.suffix == ".csv":
            with file.open("w", newline="", encoding="utf-8") as out:
                writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)))
                writer.writeheader()
                writer.writerows({name: written_cell(_cell(value)) for name, value in row.items()} for row in rows)
        else:
            file.write_text("".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))


def read_file(file: Path, unread: Counter[str] | None = None) -> tuple[Record, ...]:
    """The records of a file; `unread` counts the fields that nothing reads.

    Raises UsageError that names the line and what it lacks.
    """
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        lines = None
    elif suffix == ".csv":
        lines = _csv_lines(file)
    elif suffix == ".parquet":
        lines = _parquet_lines(file)
    else:
        raise UsageError(f"{file.name} ends in {suffix or 'nothing'}; it must be one of {', '.join(KINDS)}")
    try:
        if lines is None:
            return tuple(read_records(file, unread))
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / file.name
            written.write_text("".join(f"{line}\n" for line in lines))
            return tuple(read_records(written, unread))
    except UsageError as error:
        # The file's name is the user's, the folder it lies in is not.
        words = [
            Path(word).name if word.startswith("/") and file.name in word else word for word in str(error).split(" ")
        ]
        raise UsageError(" ".join(words)) from None


async def score_records(api: Api, model: str, records: Sequence[Record]) -> AsyncIterator[ScoredFile]:
    """Rewards of all records, told again after each request. Raises ApiFailure with the record that was refused."""
    rewards: list[tuple[float, ...]] = []
    with_references = True
    for batch in _batches(records):
        try:
            scored = await _rewards(api, model, batch, with_references=with_references)
        except ApiFailure as failure:
            if failure.param != "references" or not with_references:
                raise
            with_references = False  # a model alone compares with none
            scored = await _rewards(api, model, batch, with_references=False)
        for record in batch:
            rewards.append(tuple(scored[: len(record.contents)]))
            del scored[: len(record.contents)]
        yield ScoredFile(tuple(records), tuple(rewards))


async def _rewards(api: Api, model: str, records: Sequence[Record], *, with_references: bool) -> list[float]:
    """A request takes texts or conversations, and references for all of them or for none."""
    contents = [(content, _reference(record)) for record in records for content in record.contents]
    rewards: dict[int, float] = {}
    kinds: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for index, (content, reference) in enumerate(contents):
        name = "texts" if isinstance(content, str) else "conversations"
        kinds[name, with_references and reference is not None].append(index)
    for (name, has_references), places in kinds.items():
        references = {"references": [contents[index][1] for index in places]} if has_references else {}
        body = {"model": model, name: [contents[index][0] for index in places], **references}
        answer = await api.post("/v1/reward", body)
        rewards |= {places[row["index"]]: float(row["reward"]) for row in answer["data"]}
    return [rewards[index] for index in range(len(contents))]


def _reference(record: Record) -> str | None:
    """What rules and judges compare the record's answers with."""
    reference = record.data.get("reference")
    return reference if isinstance(reference, str) else None


def _batches(records: Sequence[Record]) -> list[list[Record]]:
    batches: list[list[Record]] = [[]]
    held = 0
    for record in records:
        if batches[-1] and held + len(record.contents) > _TEXTS_A_REQUEST:
            batches.append([])
            held = 0
        batches[-1].append(record)
        held += len(record.contents)
    return batches


def _margin(record: Record, rewards: Sequence[float]) -> float | None:
    if record.num_chosen is None or record.num_chosen >= len(rewards):
        return None
    return min(rewards[: record.num_chosen]) - max(rewards[record.num_chosen :])


def _scored_row(record: Record, rewards: Sequence[float]) -> dict[str, Any]:
    margin = _margin(record, rewards)
    if margin is None or record.num_chosen is None:
        return {"reward": rewards[0]} if len(rewards) == 1 else {"rewards": list(rewards)}
    chosen, rejected = list(rewards[: record.num_chosen]), list(rewards[record.num_chosen :])
    one_each = len(chosen) == len(rejected) == 1
    return {
        "chosen_reward": chosen[0] if one_each else chosen,
        "rejected_reward": rejected[0] if one_each else rejected,
        "margin": margin,
    }


def _counted(values: Sequence[float], low: float, step: float, num: int) -> list[int]:
    counts = [0] * num
    for value in values:
        counts[min(num - 1, max(0, int((value - low) / step)))] += 1
    return counts


def _csv_lines(file: Path) -> list[str]:
    csv.field_size_limit(1 << 24)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{file.name} can't be read as CSV ({error})") from None
    return [json.dumps({name: _value(cell) for name, cell in row.items() if name}) for row in rows]


def _parquet_lines(file: Path) -> list[str]:
    try:
        table = _parquet("reading a Parquet file").read_table(file)
        rows = [as_written(row, table.schema) for row in table.to_pylist()]
    except (OSError, ValueError) as error:
        raise UsageError(f"{file.name} can't be read as Parquet ({error})") from None
    return [json.dumps(row, default=str) for row in rows]


def _value(cell: str | None) -> Any:
    """Messages stand in a cell as JSON; every other cell is text."""
    if cell and cell.lstrip().startswith("[{"):
        try:
            return json.loads(cell)
        except ValueError:
            return cell
    return read_cell(cell) if cell else cell


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


def _parquet(needed_for: str) -> Any:
    from qserve.errors import MissingExtra

    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("pyarrow", needed_for) from error
    return pyarrow.parquet


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow

    return pyarrow.Table.from_pylist(rows)
