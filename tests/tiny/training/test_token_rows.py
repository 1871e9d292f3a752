"""Training data with tokens that the model has no row for: said by row and token before a model is loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from qserve.demo import chat_model_path
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.training.process.token_rows import check_token_rows
from tests.tiny.rowless import PLAIN, SPECIAL, with_rowless_tokens

ROWS = 1280
BAD = f"a {PLAIN} b"
ROW = {
    "sft": {"messages": [{"role": "user", "content": "1"}, {"role": "assistant", "content": BAD}]},
    "dpo": {"prompt": [{"role": "user", "content": "1"}], "chosen": [{"role": "assistant", "content": BAD}]},
    "reward": {"chosen": [{"role": "user", "content": SPECIAL}], "rejected": []},
    "grpo": {"prompt": [{"role": "user", "content": BAD}]},
    "text": {"text": f"{SPECIAL}"},
    "tools": {"messages": [], "tools": [{"function": {"name": "f", "parameters": {"properties": {PLAIN: {}}}}}]},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_rowless_tokens(Path(chat_model_path()), tmp_path_factory.mktemp("rowless") / "model")


def files(folder: Path, *rows: dict[str, Any]) -> dict[str, str]:
    file = folder / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"train": str(file)}


@pytest.mark.parametrize("name", ROW)
def test_a_row_with_one_is_named(model: Path, tmp_path: Path, name: str) -> None:
    data = files(tmp_path, {"text": "fine", "row": 0, "source": "my.jsonl:1"}, {**ROW[name], "source": "my.jsonl:7"})
    with pytest.raises(UsageError, match=r"my\.jsonl:7 has the token '.*' \(id 128[01]\), which has no row") as told:
        check_token_rows(str(model), AutoTokenizer.from_pretrained(model), data)
    assert "resize_token_embeddings" in str(told.value)


def test_other_rows_are_fine(model: Path, tmp_path: Path) -> None:
    data = files(tmp_path, {"text": "fine"}, {"text": "<filler 1270> too"})
    check_token_rows(str(model), AutoTokenizer.from_pretrained(model), data)
    demo = str(chat_model_path())
    check_token_rows(demo, AutoTokenizer.from_pretrained(demo), files(tmp_path, {"text": BAD}))


def test_a_row_that_is_cut_into_a_piece_without_a_row_is_named(tmp_path: Path) -> None:
    """Of the vocabulary itself: its text in a row does not tell, what the tokenizer makes of the row does."""
    folder = tmp_path / "model"
    shutil.copytree(chat_model_path(), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    last = max(tokenizer.tokenize("What is the number of words here?"), key=tokenizer.convert_tokens_to_ids)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": tokenizer.convert_tokens_to_ids(last)}))
    tokenizer.eos_token, tokenizer.pad_token, tokenizer.chat_template = "a", "a", None
    data = files(tmp_path, {"text": "a"}, {"text": "What is the number of words here?", "source": "my.jsonl:7"})
    with pytest.raises(UsageError, match=r"my\.jsonl:7 has the token") as told:
        check_token_rows(str(folder), tokenizer, data)
    assert repr(last) in str(told.value)


def test_what_every_row_would_hold_is_refused(model: Path, tmp_path: Path) -> None:
    data, tokenizer = files(tmp_path, {"text": "fine"}), AutoTokenizer.from_pretrained(model)
    tokenizer.eos_token = SPECIAL
    with pytest.raises(UsageError, match="the tokenizer's eos_token is the token"):
        check_token_rows(str(model), tokenizer, data)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = "{% for m in messages %}" + PLAIN + "{{ m.content }}{% endfor %}"
    with pytest.raises(BrokenCheckpoint, match="the chat template writes"):
        check_token_rows(str(model), tokenizer, data)
