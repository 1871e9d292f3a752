"""Rows of data with a token that the model's embedding has no row for: said before the model is loaded.

In a step such a token is an IndexError on a CPU, and on a card an assertion that ends the process without a name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from qserve.errors import UsageError
from qserve.hub.token_rows import ADVICE, RowlessTokens, rowless_among
from qserve.prompts.special_tokens import strings_in
from qserve.prompts.written_tokens import check_written

__all__ = ["check_token_rows"]


def check_token_rows(model: str, tokenizer: Any, files: dict[str, str]) -> None:
    """Raises UsageError for the first row of `files` (JSON lines) with such a token, or where each row would have one.

    BrokenCheckpoint for a chat template that writes one.
    """
    num_rows = int(AutoConfig.from_pretrained(model).get_text_config().vocab_size)
    rowless = rowless_among(tokenizer.get_added_vocab(), tokenizer.get_vocab(), num_rows)
    if rowless is None:
        return
    for name in ("eos_token", "pad_token"):
        if getattr(tokenizer, name) in rowless.every:
            raise UsageError(f"the tokenizer's {name} is {_refusal(getattr(tokenizer, name), rowless)}")
    if isinstance(tokenizer.chat_template, str):
        check_written(tokenizer.chat_template, rowless, tokenizer.special_tokens_map, is_answered=True)
    for file in files.values():
        _check_file(Path(file), rowless, tokenizer)


def _check_file(file: Path, rowless: RowlessTokens, tokenizer: Any) -> None:
    with file.open() as lines:
        for number, line in enumerate(lines, start=1):
            row = json.loads(line)
            source = row.pop("source", f"line {number} of {file.name}")
            for text in strings_in(row):
                if (token := rowless.written_in(text) or _piece_in(text, rowless, tokenizer)) is not None:
                    raise UsageError(f"{source} has {_refusal(token, rowless)}, or leave the row out")


def _piece_in(text: str, rowless: RowlessTokens, tokenizer: Any) -> str | None:
    """The first of the vocabulary's own that `text` is cut into."""
    if not rowless.pieces:
        return None
    return next((token for token in tokenizer.tokenize(text) if token in rowless.pieces), None)


def _refusal(token: str, rowless: RowlessTokens) -> str:
    return (
        f"the token {token!r} (id {rowless.every[token]}), which has no row in the model's embedding "
        f"({rowless.num_rows} rows): {ADVICE}"
    )
