"""A source once through: TRL's files, the split by prompt, broken rows by their line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.training.data.prepare import prepare, prepared, source_of
from qserve.training.data.read import rows_in
from qserve.training.job import DataSource


def pairs(count: int) -> list[dict]:
    """Two rows for each prompt."""
    return [{"prompt": f"question {n // 2}", "chosen": f"yes {n}", "rejected": "no"} for n in range(count)]


def written(file: Path, rows: list) -> Path:
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


def made(folder: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_no_prompt_stands_on_both_sides(tmp_path: Path) -> None:
    file = written(tmp_path / "pairs.jsonl", pairs(400))
    data = prepare(DataSource(str(file), eval_share=0.2), "reward", tmp_path / "data", tmp_path / "run")
    train, test = made(tmp_path / "data", "train"), made(tmp_path / "data", "test")
    assert (data.num_train, data.num_eval) == (len(train), len(test))
    assert 40 <= len(test) <= 120 and len(train) + len(test) == 400
    prompts = [{row["prompt"][0]["content"] for row in side} for side in (train, test)]
    assert not prompts[0] & prompts[1]
    assert source_of(tmp_path / "data", train[3]["row"]) == train[3]["source"]
    assert prepared(tmp_path / "run") == data


def test_the_same_source_gives_the_same_split(tmp_path: Path) -> None:
    rows = pairs(100)
    first = prepare(DataSource(str(written(tmp_path / "a.jsonl", rows))), "dpo", tmp_path / "1", tmp_path / "r1")
    again = prepare(DataSource(str(tmp_path / "a.jsonl")), "dpo", tmp_path / "2", tmp_path / "r2")
    assert first.sha256 == again.sha256


def test_broken_rows_are_named_by_line_and_left_out(tmp_path: Path) -> None:
    rows = [*pairs(100), "{no json", {"prompt": "p", "chosen": "a"}, *pairs(100)]
    file = written(tmp_path / "pairs.jsonl", rows)
    data = prepare(DataSource(str(file), max_broken_share=0.02), "reward", tmp_path / "data", tmp_path / "run")
    assert data.num_broken == 2
    assert "2 broken rows left out" in data.told
    broken = [json.loads(line) for line in (tmp_path / "run" / "broken.jsonl").read_text().splitlines()]
    assert [one["source"] for one in broken] == ["pairs.jsonl:101", "pairs.jsonl:102"]
    assert "not valid JSON" in broken[0]["why"] and "chosen and rejected" in broken[1]["why"]


def test_too_many_broken_rows_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "pairs.jsonl", [*pairs(50), "[1]", "nothing", {"prompt": "p"}])
    with pytest.raises(UsageError, match=r"3 of 53 rows are broken \(5\.7 %.*--max-broken") as told:
        prepare(DataSource(str(file)), "reward", tmp_path / "data", tmp_path / "run")
    assert "pairs.jsonl:51: a JSON list" in str(told.value) and "pairs.jsonl:53" in str(told.value)
    assert not (tmp_path / "data").exists()
    assert (tmp_path / "run" / "broken.jsonl").exists()


def test_rows_of_two_kinds_are_no_table(tmp_path: Path) -> None:
    rows = [*pairs(10), {**pairs(1)[0], "margin": 1.0}]
    data = prepare(
        DataSource(str(written(tmp_path / "p.jsonl", rows)), eval_share=0),
        "reward",
        tmp_path / "data",
        tmp_path / "run",
    )
    assert (data.num_train, data.num_broken) == (10, 1)


def test_a_file_to_evaluate_on_is_no_share_of_the_first(tmp_path: Path) -> None:
    source = DataSource(
        str(written(tmp_path / "a.jsonl", pairs(40))), eval_path=str(written(tmp_path / "b.jsonl", pairs(6)))
    )
    data = prepare(source, "reward", tmp_path / "data", tmp_path / "run")
    assert (data.num_train, data.num_eval) == (40, 6)


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")

    rows = pairs(5)
    table = pyarrow.Table.from_pylist(rows)
    written(tmp_path / "a.jsonl", rows)
    (tmp_path / "b.json").write_text(json.dumps(rows))
    pyarrow.parquet.write_table(table, tmp_path / "c.parquet")
    with pyarrow.ipc.new_file(str(tmp_path / "d.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pyarrow.ipc.new_stream(str(tmp_path / "e.arrow"), table.schema) as writer:
        writer.write_table(table)
    for file in sorted(tmp_path.iterdir()):
        assert [dict(row.data) for row in rows_in(str(file))] == rows, file
        assert [row.place for row in rows_in(str(file))] == [f"{file.name}:{n}" for n in range(1, 6)]
    assert len(list(rows_in(str(tmp_path)))) == 25


@pytest.mark.parametrize("source", ["nowhere.jsonl", "/nowhere/at/all", "data.csv"])
def test_a_source_that_is_not_there(source: str) -> None:
    with pytest.raises(UsageError, match="--data takes"):
        list(rows_in(source))
