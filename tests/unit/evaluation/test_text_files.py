"""A file of texts as documents: what each format holds, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.evaluation.text_files import is_text_file, read_documents, text_task


@pytest.mark.parametrize(
    ("name", "text", "documents"),
    [
        ("a.txt", "one\n\ntwo\n", ["one\n\ntwo\n"]),
        ("a.MD", "# one", ["# one"]),
        ("a.jsonl", '{"text": "one"}\n\n"two\u2028"\n{"text": " "}\n', ["one", "two\u2028"]),
        ("a.json", json.dumps([{"text": "one", "id": 1}, "zwei\u2028drei"]), ["one", "zwei\u2028drei"]),
    ],
)
def test_documents_of_each_format(name: str, text: str, documents: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert is_text_file(name)
    assert read_documents(tmp_path / name) == documents


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b" \n", "only blank lines"),
        ("a.txt", b"caf\xe9", "line 1 is not UTF-8: 0xe9 is its byte 4"),
        (
            "a.jsonl",
            b'{"text": "a"}\n{"content": "b", "id": 1}\n',
            "line 2: it must be a string, or an object.*found: content, id",
        ),
        ("a.jsonl", b'{"text": "a"}\n{"text"\n', "line 2 is not valid JSON"),
        ("a.json", b'{"text": "a"}', "must be a list"),
        ("a.json", b"[1]", "entry 1: .*found: int"),
    ],
)
def test_what_holds_no_text_is_one_sentence(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=words):
        read_documents(tmp_path / name)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match="there is no such file"):
        read_documents(Path("/nowhere/a.txt"))


def test_the_task_is_named_after_the_file(tmp_path: Path) -> None:
    (tmp_path / "my text (1).txt").write_text("a")
    assert text_task(str(tmp_path / "my text (1).txt"))["task"] == "perplexity_my_text_1_"
    assert not is_text_file("sums.yaml") and not is_text_file("gsm8k")
