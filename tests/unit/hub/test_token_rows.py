"""Tokens without a row, wherever a checkpoint's files name them."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qserve.errors import BrokenCheckpoint
from qserve.hub.chat_template import read_template
from qserve.hub.token_rows import RowlessTokens, rowless_tokens, without_row
from qserve.prompts.written_tokens import check_chat_template, check_written

ROWS = 12


def written(folder: Path, *, added: dict[str, int], decoder: dict[str, int] | None = None, **named: Any) -> Path:
    vocabulary = {letter: index for index, letter in enumerate("abcdefgh")}
    listed = [{"id": number, "content": text, "special": True} for text, number in added.items()]
    tokenizer = {"version": "1.0", "added_tokens": listed, "model": {"type": "BPE", "vocab": vocabulary}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, indent=2))
    config: dict[str, Any] = dict(named)
    if decoder is not None:
        config["added_tokens_decoder"] = {str(number): {"content": text} for text, number in decoder.items()}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"vocab_size": ROWS}))
    return folder


def found(folder: Path, **config: Any) -> dict[str, int]:
    rowless = rowless_tokens(folder, config or {"vocab_size": ROWS})
    return {} if rowless is None else rowless.every


@given(ids=st.sets(st.integers(8, 30), max_size=8), listed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_exactly_the_ids_past_the_last_row_are_found(ids: set[int], listed: bool) -> None:
    tokens = {f"<{number}>": number for number in ids}
    with TemporaryDirectory() as name:
        folder = written(Path(name), added={} if listed else tokens, decoder=tokens if listed else None)
        assert found(folder) == {text: number for text, number in tokens.items() if number >= ROWS}
        assert found(folder, text_config={"vocab_size": 20}) == {text: n for text, n in tokens.items() if n >= 20}
        assert found(folder, vocab_size=31) == {}


def test_a_list_in_the_config_goes_before_the_tokenizers(tmp_path: Path) -> None:
    """As transformers 5 has it."""
    assert found(written(tmp_path, added={"<x>": 12}, decoder={"<y>": 11})) == {}


@pytest.mark.parametrize(
    ("listed", "vocabulary"), [({"12": "<x>", "²": {"content": "<y>"}}, {"a": 0}), ({}, {"a": "0"}), ({}, {})]
)
def test_a_damaged_tokenizer_is_no_traceback(tmp_path: Path, listed: Any, vocabulary: Any) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}))
    config = {"added_tokens_decoder": listed, "eos_token": "<e>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert found(tmp_path) == {}


@pytest.mark.parametrize("kind", ["BPE", "Unigram", "vocab.json"])
@given(num_rows=st.integers(1, 9), used=st.booleans())
@settings(max_examples=20, deadline=None)
def test_entries_of_the_vocabulary_itself_are_found(kind: str, num_rows: int, used: bool) -> None:
    """Whatever its tokens are called."""
    texts = ['"vocab"', "vocab", "a", "{", "]", "é", '"vocab": {', "Ġb"]
    with TemporaryDirectory() as name:
        folder = written(Path(name), added={"vocab": 1} if used else {})
        file = folder / "tokenizer.json"
        vocabulary: Any = {text: index for index, text in enumerate(texts)}
        if kind == "vocab.json":
            file.unlink()
            file = folder / kind
            file.write_text(json.dumps(vocabulary))
        else:
            listed = [[text, -1.0] for text in texts] if kind == "Unigram" else vocabulary
            tokenizer = json.loads(file.read_text())
            file.write_text(json.dumps({**tokenizer, "model": {"type": kind, "vocab": listed, "merges": []}}))
        past = {text: index for index, text in enumerate(texts) if index >= num_rows}
        assert found(folder, vocab_size=num_rows) == past


def test_pieces_are_told_and_not_searched_in_texts(tmp_path: Path) -> None:
    """Whether a text holds one only the tokenizer can tell."""
    rowless = rowless_tokens(written(tmp_path, added={"<x>": 12}), {"vocab_size": 7})
    assert rowless is not None and rowless.pieces == {"h": 7}
    assert rowless.written_in("h <x>") == "<x>" and rowless.written_in("h") is None
    assert "2 tokens without a row in the embedding, which has 7: 'h' (id 7), '<x>' (id 12)" in str(rowless)
    check_written("h{{ messages[0].content }}", rowless)


def test_what_is_named_without_a_number_gets_the_next(tmp_path: Path) -> None:
    folder = written(tmp_path, added={"<x>": 11}, eos_token="<end>", pad_token={"content": "<x>"}, unk_token="a")
    assert found(folder) == {"<end>": 12}


def test_folders_without_a_tokenizer_or_with_broken_files_say_nothing(tmp_path: Path) -> None:
    assert found(tmp_path) == {}
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [')
    (tmp_path / "tokenizer_config.json").write_text("[]")
    assert found(tmp_path) == {} and found(tmp_path, vocab_size="many") == {}


def test_it_is_one_line_with_examples() -> None:
    said = str(RowlessTokens(ROWS, {f"<{number}>": number for number in range(12, 18)}))
    assert said.startswith("the tokenizer has 6 tokens without a row in the embedding, which has 12: '<12>' (id 12)")
    assert "'<14>' (id 14), …" in said and "\n" not in said
    assert "has 1 token without" in str(RowlessTokens(ROWS, {"<x>": 12}))


@pytest.mark.parametrize(
    ("template", "is_answered", "is_refused"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False, False),
        ("<x>{% for m in messages %}{{ m.content }}{% endfor %}", False, True),
        ("{% for m in messages %}{% if m.role == 'system' %}<x>{% endif %}{% endfor %}", False, True),
        (
            "{% if add_generation_prompt and enable_thinking is defined and enable_thinking %}<x>{% endif %}",
            False,
            True,
        ),
        ("{% if add_generation_prompt %}<x>{% endif %}", True, False),
        ("{{ messages[-1].content }}{{ eos_token }}", True, True),
        ("{% if tools %}<x>{% endif %}", False, False),
        ("{{ raise_exception('never') }}<x>", False, False),
    ],
)
def test_a_template_that_writes_one_is_refused(template: str, is_answered: bool, is_refused: bool) -> None:
    rowless = RowlessTokens(ROWS, {"<x>": 12, "<y>": 13})
    try:
        check_written(template, rowless, {"eos_token": "<y>"}, is_answered=is_answered)
    except BrokenCheckpoint as error:
        assert is_refused and "no row in the embedding (12 rows)" in str(error)
    else:
        assert not is_refused


def test_the_template_of_a_folder(tmp_path: Path) -> None:
    folder = written(tmp_path, added={"<x>": 12}, chat_template="<x>{{ messages[0].content }}")
    with pytest.raises(BrokenCheckpoint, match=r"the chat template writes '<x>' \(id 12\)"):
        check_chat_template(folder, read_template(folder))
    (folder / "config.json").write_text(json.dumps({"vocab_size": 13}))
    check_chat_template(folder, read_template(folder))


def test_the_first_id_without_a_row_is_named_by_its_text_where_it_has_one() -> None:
    texts = {11: "<new>"}
    assert without_row([0, 9], 10, texts.get) is None and without_row([], 10, texts.get) is None
    assert str(without_row([3, 11, 10], 10, texts.get)).startswith("the token '<new>' (id 11), which has no row")
    assert str(without_row({10}, 10, texts.get)).startswith("the token id 10, which has no row")
    assert str(without_row([1 << 40], 10, lambda _: "never asked")).startswith("the token id 1099511627776,")


def test_a_tokenizer_of_a_hundred_thousand_levels_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text('{"model": ' + "[" * 100_000)
    (tmp_path / "tokenizer_config.json").write_text("[" * 100_000)
    assert found(tmp_path) == {}
