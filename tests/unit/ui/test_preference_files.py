"""Files of pairs: read in three formats, scored in requests of a bounded size, written back."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from qserve.errors import UsageError
from qserve.ui.client.api import ApiFailure
from qserve.ui.preference_files import ScoredFile, read_file, score_records

ROWS = [{"prompt": "a", "chosen": "good", "rejected": "bad!"}, {"prompt": "b", "chosen": "yes", "rejected": "no"}]


def write(folder: Path, suffix: str, rows: list[dict[str, Any]] = ROWS) -> Path:
    file = folder / f"pairs{suffix}"
    if suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif suffix == ".csv":
        with file.open("w", newline="") as out:
            writer = csv.DictWriter(out, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file


class Scorer:
    """Answers as /v1/reward does: the reward of a conversation is the length of its answer."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        texts = body["conversations"] if "conversations" in body else body["texts"]
        self.sizes.append(len(texts))
        ends = [text if isinstance(text, str) else text[-1]["content"] for text in texts]
        return {"data": [{"index": index, "reward": len(end)} for index, end in enumerate(ends)]}


async def scored(records: Any, api: Scorer | None = None) -> ScoredFile:
    *_, last = [one async for one in score_records(api or Scorer(), "m", records)]  # type: ignore[arg-type]
    return last


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
async def test_every_format_goes_in_and_comes_back_with_rewards(tmp_path: Path, suffix: str) -> None:
    result = await scored(read_file(write(tmp_path, suffix)))
    assert result.margins == [0, 1] and result.accuracy == 0.75, "a tie counts half"
    file = tmp_path / f"out{suffix}"
    result.write(file)
    again = read_file(file)
    assert [record.data["prompt"] for record in again] == ["a", "b"]
    assert [float(record.data["margin"]) for record in again] == [0, 1]
    assert [float(record.data["chosen_reward"]) for record in again] == [4, 3]


async def test_requests_have_a_bounded_size_and_every_reward_finds_its_place() -> None:
    from qserve.reward.evaluation.records import Record

    records = [Record(n, ("x" * n, [{"role": "user", "content": "q"}]), 1, None, {}) for n in range(1, 101)]
    api = Scorer()
    result = await scored(records, api)
    assert max(api.sizes) <= 64 and sum(api.sizes) == 200
    assert list(result.rewards) == [(n, 1) for n in range(1, 101)]


async def test_zero_is_an_edge_of_the_histogram() -> None:
    from qserve.reward.evaluation.records import Record

    records = tuple(Record(n, ("", ""), 1, None, {}) for n in range(3))
    edges, counts, split = ScoredFile(records, ((0.0, 1.0), (3.0, 1.0), (5.0, 1.0))).columns()
    assert split is not None and edges[split] == pytest.approx(0)
    assert sum(counts[:split]) == 1 and sum(counts[split:]) == 2
    same = ScoredFile(records[:1], ((1.0, 1.0),)).columns()
    assert sum(same[1]) == 1


def test_a_file_that_is_none_is_told_without_its_folder(tmp_path: Path) -> None:
    broken = write(tmp_path, ".csv", [{"prompt": "a", "other": "b"}])
    with pytest.raises(UsageError, match=r"pairs\.csv, line 1: the row has the fields prompt, other") as told:
        read_file(broken)
    assert str(tmp_path) not in str(told.value)
    (tmp_path / "x.parquet").write_text("no parquet")
    with pytest.raises(UsageError, match="can't be read as Parquet"):
        read_file(tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=r"ends in \.txt; it must be one of"):
        read_file(tmp_path / "x.txt")


async def test_no_cell_of_a_csv_is_a_formula_and_all_come_back(tmp_path: Path) -> None:
    texts = ["=cmd|'/c calc'!A0", "@SUM(A1)", "+1+1", "- a list", "-4.5", "'=x", "plain"]
    rows = [{"prompt": text, "chosen": text, "rejected": "no"} for text in texts]
    result = await scored(read_file(write(tmp_path, ".jsonl", rows)))
    file = tmp_path / "out.csv"
    result.write(file)
    with file.open(newline="") as stream:
        cells = [row["prompt"] for row in csv.DictReader(stream)]
    assert cells == ["'=cmd|'/c calc'!A0", "'@SUM(A1)", "'+1+1", "'- a list", "-4.5", "''=x", "plain"]
    assert [record.data["prompt"] for record in read_file(file)] == texts


async def test_references_go_to_what_compares_with_them(tmp_path: Path) -> None:
    """And not to a model alone, which refuses them."""
    rows = [{**row, "reference": row["chosen"]} for row in ROWS]
    taken, refused = Scorer(), Scorer()
    bodies: list[dict[str, Any]] = []
    plain = Scorer.post

    async def take(path: str, body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        return await plain(taken, path, body)

    async def refuse(path: str, body: dict[str, Any]) -> dict[str, Any]:
        if "references" in body:
            raise ApiFailure("none here", 400, "references")
        return await plain(refused, path, body)

    taken.post, refused.post = take, refuse  # type: ignore[method-assign]
    records = read_file(write(tmp_path, ".jsonl", rows))
    assert (await scored(records, taken)).margins == (await scored(records, refused)).margins == [0, 1]
    assert [body["references"] for body in bodies] == [["good", "good", "yes", "yes"]]
