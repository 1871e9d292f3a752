"""Checkpoints whose tokenizers have tokens that were added without resizing the embedding."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokenizers import AddedToken
from transformers import AutoTokenizer

from qserve.hub.folder import read_config
from qserve.hub.token_rows import rows_of

__all__ = ["PLAIN", "SPECIAL", "with_rowless_tokens"]

PLAIN, SPECIAL = "<plain_added>", "<|special_added|>"


def with_rowless_tokens(source: Path, folder: Path, template: str | None = None) -> Path:
    """A copy of `source` whose tokenizer has PLAIN and SPECIAL past the last row; with the chat `template`."""
    shutil.copytree(source, folder)
    tokenizer, num_rows = AutoTokenizer.from_pretrained(folder), rows_of(read_config(folder))
    assert num_rows is not None
    tokenizer.add_tokens([f"<filler {index}>" for index in range(len(tokenizer), num_rows)])
    tokenizer.add_tokens([AddedToken(PLAIN), AddedToken(SPECIAL, special=True)])
    assert tokenizer.convert_tokens_to_ids([PLAIN, SPECIAL]) == [num_rows, num_rows + 1]
    tokenizer.save_pretrained(folder)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder
