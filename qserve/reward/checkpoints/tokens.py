"""Single tokens of a tokenizer on disk, without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qserve.errors import BrokenCheckpoint

__all__ = ["STEP_TOKEN", "has_tokenizer", "token_id"]

STEP_TOKEN = "<extra_0>"  # noqa: S105 (a token of text, no secret)
# Its id in the tokenizers of Qwen2.5-Math-PRM, whose config.json does not name it.
_STEP_TOKEN_ID = 151651
_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a vocabulary."""
    return folder.is_dir() and any((folder / name).is_file() for name in _FILES)


def token_id(folder: Path, token: str, config: Mapping[str, Any]) -> int:
    """The id of `token`. Raises BrokenCheckpoint when the tokenizer does not know it as one token."""
    known = _added_tokens(folder)
    if token in known:
        return known[token]
    if token == STEP_TOKEN and int(config.get("vocab_size", 0)) > _STEP_TOKEN_ID:
        return _STEP_TOKEN_ID
    raise BrokenCheckpoint(
        f"the tokenizer in {folder} has no token {token!r}, which ends the steps that a process reward model scores; "
        "name the one it was trained with: --step-token TOKEN"
    )


def _added_tokens(folder: Path) -> dict[str, int]:
    try:
        data = json.loads((folder / "tokenizer.json").read_text())
        vocabulary = data.get("model", {}).get("vocab", {})
        tokens = dict(vocabulary) if isinstance(vocabulary, dict) else {}
        tokens.update({item["content"]: int(item["id"]) for item in data.get("added_tokens", ())})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return tokens
