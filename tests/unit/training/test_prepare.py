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


def called(name: str, arguments: dict) -> dict:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [call]}]}


CALLS = [called("add", {"a": 1}), called("say", {"text": "b", "loud": True})]


@pytest.mark.parametrize("as_json", [False, True])
def test_columns_give_a_call_no_argument_of_another(tmp_path: Path, as_json: bool) -> None:
    """A table's struct has the names of all rows; `datasets` stores what is of several types as JSON."""
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    table = pyarrow.Table.from_pylist(CALLS)
    if as_json:
        turns = [[json.dumps(turn) for turn in row["messages"]] for row in CALLS]
        kind = pyarrow.list_(pyarrow.json_())
        storage = pyarrow.array(turns, pyarrow.list_(pyarrow.string()))
        table = pyarrow.table({"messages": storage.cast(kind)})
    pyarrow.parquet.write_table(table, tmp_path / "calls.parquet")
    assert [dict(row.data) for row in rows_in(str(tmp_path / "calls.parquet"))] == CALLS


def test_what_is_not_trained_on_is_told(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "weight": 0}]}
    rows = [*({**one, "colour": 1} for one in CALLS), talk]
    source = DataSource(str(written(tmp_path / "a.jsonl", rows)), eval_share=0)
    data = prepare(source, "sft", tmp_path / "data", tmp_path / "run", "{{ messages[0].tool_calls }}")
    assert (data.num_train, data.num_masked, data.num_broken) == (2, 1, 0)
    assert "1 rows without an answer in the loss left out" in data.told
    assert data.notes == ["fields that are not read: 'colour' 2×"]
    assert prepared(tmp_path / "run") == data
    ties = [*pairs(4), {"prompt": "p", "chosen": "a", "rejected": "a"}]
    source = DataSource(str(written(tmp_path / "b.jsonl", ties)), eval_share=0)
    data = prepare(source, "dpo", tmp_path / "pairs", tmp_path / "other")
    assert (data.num_train, data.num_ties, data.num_broken) == (4, 1, 0) and "1 ties" in data.told


def test_rows_with_nothing_in_the_loss_are_no_data(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": False}]}
    source = DataSource(str(written(tmp_path / "a.jsonl", [talk] * 3)), eval_share=0)
    with pytest.raises(UsageError, match="3 have no answer in the loss, 0 are left to train on"):
        prepare(source, "sft", tmp_path / "data", tmp_path / "run")


def test_a_template_without_tools_is_refused_for_rows_that_have_some(tmp_path: Path) -> None:
    """It would train an empty answer where the model should call."""
    tools = [{"name": "add", "parameters": {}}]
    thought = {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    rows = [{**one, "tools": tools} for one in CALLS]
    rows.append({"prompt": "q", "completion": [thought], "chat_template_kwargs": {"mood": "good"}})
    source = DataSource(str(written(tmp_path / "a.jsonl", rows)), eval_share=0)
    with pytest.raises(
        UsageError, match=r"2 rows have 'tools' and 2 rows have 'tool_calls'.*template that supports tools"
    ):
        prepare(source, "sft", tmp_path / "data", tmp_path / "run", "{{ messages[0].content }}")
    data = prepare(source, "sft", tmp_path / "data", tmp_path / "run", "{{ tools }}{{ messages[0].tool_calls }}")
    assert data.notes == ["the chat template does not write 'mood' of 1 rows, 'reasoning_content' of 1 rows"]
    assert data.columns == ("prompt", "completion", "tools", "chat_template_kwargs")
    (call, *_, last) = made(tmp_path / "data", "train")
    assert (call["chat_template_kwargs"], last["tools"]) == ({}, None)
    assert call["tools"] == [{"type": "function", "function": tools[0]}]


@pytest.mark.parametrize("source", ["nowhere.jsonl", "/nowhere/at/all", "data.csv"])
def test_a_source_that_is_not_there(source: str) -> None:
    with pytest.raises(UsageError, match="--data takes"):
        list(rows_in(source))
