"""Texts to calibrate on, the rows that are drawn of them, and how the process that uses them ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.cli.compare.measured import with_section
from qserve.derive.quantize.calibration import bundled_texts, demo_texts, texts_in
from qserve.derive.quantize.in_environment import rows_of, tokenized
from qserve.derive.quantize.run import failure
from qserve.errors import UsageError

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class Letters:
    """A tokenizer with a token a letter, and a template that says who speaks."""

    chat_template = "there is one"

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(one) for one in text]}

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool) -> str:
        return "".join(f"{one['role'][0]}:{one['content']};" for one in messages)


def test_rows_of_each_kind_are_read(tmp_path: Path) -> None:
    rows = [
        {"text": "x"},
        {"messages": CHAT},
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = texts_in(tmp_path / "a.jsonl")
    assert found.source == "3 texts of a.jsonl"
    assert found.rows == ({"text": "x"}, {"messages": CHAT}, {"messages": CHAT})
    found.write(tmp_path / "b.jsonl")
    assert [bytes(one) for one in tokenized(tmp_path / "b.jsonl", Letters())] == [b"x", b"u:a;a:b;", b"u:a;a:b;"]
    (tmp_path / "c.txt").write_text("one\n\n\n\ntwo\nlines\n")
    assert texts_in(tmp_path / "c.txt").rows == ({"text": "one"}, {"text": "two\nlines"})


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", "{}\n", "line 1 has neither `text` nor a conversation"),
        ("a.jsonl", '{"text": "x"}\n[\n', "line 2 is not JSON"),
        ("a.jsonl", "\n", "has no texts"),
        ("a.csv", "x", "ends in .jsonl"),
        ("none.jsonl", None, "is no file"),
    ],
)
def test_a_file_without_texts_is_refused(tmp_path: Path, name: str, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=words):
        texts_in(tmp_path / name)


def test_texts_come_with_qserve() -> None:
    assert len(bundled_texts().rows) > 80 and "Python's manual" in bundled_texts().source
    assert len(demo_texts().rows) == 256 and demo_texts() == demo_texts()


def test_rows_are_cut_drawn_and_counted() -> None:
    texts = [[1] * 40, [2] * 3, [3] * 17]
    rows = rows_of(texts, 16, 99, seed=0)
    assert sorted(map(len, rows)) == [8, 16, 16, 16]  # pieces of 1 and 3 tokens are left out
    assert rows_of(texts, 16, 2, seed=0) == rows[:2]
    assert rows_of([[1], [2, 3]], 16, 9, seed=0) in ([[1], [2, 3]], [[2, 3], [1]])  # there are none longer


@pytest.mark.parametrize(
    ("last", "status", "words"),
    [
        (
            {"event": "failed", "kind": "KeyError", "text": "'x'"},
            1,
            r"failed: KeyError: 'x'; all of its words: it\.log",
        ),
        ({"event": "failed", "kind": "OutOfMemoryError", "text": "CUDA out of memory"}, 1, "memory ran out"),
        ({}, -9, "memory ran out"),
        ({}, 2, "it ended with status 2"),
    ],
)
def test_an_end_is_one_sentence(last: dict[str, str], status: int, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(failure(last, status, Path("it.log")))


def test_a_measurement_takes_the_place_of_an_older_one_in_a_card() -> None:
    page = with_section("# m\n\n## How\n\ntext\n", "Measured on a", {"": ("bf16", "w4"), "right": ("1", "2")})
    assert page == "# m\n\n## How\n\ntext\n\n## Measured on a\n\n|  | bf16 | w4 |\n|---|---|---|\n| right | 1 | 2 |\n"
    both = with_section(page, "Measured on b", {"": ("bf16", "w4")})
    again = with_section(both, "Measured on a", {"": ("bf16", "w5")})
    assert again.count("## ") == 3 and "w5" in again and "| right" not in again and "Measured on b" in again
