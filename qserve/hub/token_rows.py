"""Tokens of a checkpoint's tokenizer whose ids are past the last row of its embedding.

A fine-tune that adds tokens and forgets to resize the embedding makes such a checkpoint: a model can neither read nor
write these tokens. The other way around is usual: embeddings are padded, and have more rows than there are tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from qserve.core.nested import text_config

__all__ = ["ADVICE", "RowlessTokens", "rowless_among", "rowless_tokens", "rows_of", "without_row"]

_SHOWN = 3
_MOST_ID = (1 << 31) - 1
# Of the model in a tokenizer.json: a token that is called so has no object or list behind it.
_VOCABULARY = re.compile(r'"vocab"\s*:\s*(?=[\[{])')
ADVICE = "resize the embedding when tokens are added: model.resize_token_embeddings(len(tokenizer))"


@dataclass(frozen=True)
class RowlessTokens:
    """Ids of tokens past the last of `num_rows` in an embedding.

    Attributes:
        ids: of added tokens by their texts.
        pieces: of the vocabulary itself. Whether a text holds one only the tokenizer can tell.
    """

    num_rows: int
    ids: Mapping[str, int]
    pieces: Mapping[str, int] = field(default_factory=dict)

    @property
    def every(self) -> dict[str, int]:
        """Both, by their ids."""
        return dict(sorted({**self.pieces, **self.ids}.items(), key=lambda item: item[1]))

    def __str__(self) -> str:
        """For the user, in one line."""
        every = self.every
        shown = ", ".join(f"{text!r} (id {number})" for text, number in list(every.items())[:_SHOWN])
        more = ", …" if len(every) > _SHOWN else ""
        one = len(every) == 1
        return (
            f"the tokenizer has {len(every):,} {'token' if one else 'tokens'} without a row in the embedding, which "
            f"has {self.num_rows}: {shown}{more}; a text that holds {'it' if one else 'one'} is refused. To use "
            f"{'it' if one else 'them'}, {ADVICE}"
        )

    def written_in(self, text: str) -> str | None:
        """The first added one that `text` holds: a tokenizer finds added tokens before anything else."""
        return next((token for token in self.ids if token in text), None)


def without_row(token_ids: Collection[int], num_rows: int, text_of: Callable[[int], str | None]) -> str | None:
    """What is wrong with the first of the tokens that has no row; None where each has one.

    `text_of` is asked for ids that a tokenizer may know; it has None for those that it does not.
    """
    if max(token_ids, default=0) < num_rows:
        return None
    token_id = next(one for one in token_ids if one >= num_rows)
    text = text_of(token_id) if token_id <= _MOST_ID else None
    named = f"the token id {token_id}" if text is None else f"the token {text!r} (id {token_id})"
    return f"{named}, which has no row in this model's embedding: its ids end at {num_rows - 1}"


def rows_of(config: Mapping[str, Any]) -> int | None:
    """Rows of the embedding, by config.json."""
    size = config.get("vocab_size") or text_config(config).get("vocab_size")
    return size if isinstance(size, int) and size > 0 else None


def rowless_tokens(folder: Path, config: Mapping[str, Any]) -> RowlessTokens | None:
    """Tokens of the tokenizer in `folder` without a row; None where there are none, or nothing can be told."""
    num_rows = rows_of(config)
    return None if num_rows is None else rowless_among(_added(folder), _pieces_past(folder, num_rows), num_rows)


def rowless_among(added: Mapping[str, int], vocabulary: Mapping[str, int], num_rows: int) -> RowlessTokens | None:
    """The same of a tokenizer that was loaded; `vocabulary` may hold the added ones as well."""
    ids = {text: number for text, number in sorted(added.items(), key=lambda item: item[1]) if number >= num_rows}
    pieces = {text: number for text, number in vocabulary.items() if number >= num_rows and text not in added}
    return RowlessTokens(num_rows, ids, pieces) if ids or pieces else None


def _added(folder: Path) -> dict[str, int]:
    """Added tokens by their texts, as transformers 5 finds them: a list in tokenizer_config.json goes before others.

    What is named without a number gets the next one.
    """
    config, file = _read(folder / "tokenizer_config.json"), folder / "tokenizer.json"
    listed = config.get("added_tokens_decoder")
    named = _named(config)
    if isinstance(listed, dict) and listed:
        entries = [
            {**token, "id": int(number)}
            for number, token in listed.items()
            if number.isdecimal() and isinstance(token, dict)
        ]
    else:
        entries = _added_in_tokenizer(file)
        named += list(_read(folder / "added_tokens.json"))
    found: dict[str, int] = {
        token["content"]: token["id"]
        for token in entries
        if isinstance(token.get("content"), str) and isinstance(token.get("id"), int)
    }
    if any(text not in found for text in named):
        model = _read(file).get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        if isinstance(vocabulary, dict):
            taken = [number for number in vocabulary.values() if isinstance(number, int)]
            for text in dict.fromkeys(named):
                if text not in found and text not in vocabulary:
                    found[text] = max([*found.values(), *taken], default=-1) + 1
    return found


def _named(config: Mapping[str, Any]) -> list[str]:
    """Special tokens that tokenizer_config.json names by their use."""
    values = [value for key, value in config.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key)
        values += more.values() if isinstance(more, dict) else more if isinstance(more, list) else []
    contents = [value.get("content") if isinstance(value, dict) else value for value in values]
    return [text for text in contents if isinstance(text, str) and text]


def _added_in_tokenizer(file: Path) -> list[dict[str, Any]]:
    """Of a file of megabytes the one list: it stands before the vocabulary."""
    try:
        text = file.read_text()
        begin = text.index("[", text.index('"added_tokens"'))
        listed = json.JSONDecoder().raw_decode(text, begin)[0]
    except (OSError, ValueError, RecursionError):
        return []
    return [token for token in listed if isinstance(token, dict)]


def _pieces_past(folder: Path, num_rows: int) -> dict[str, int]:
    """Entries of the vocabulary without a row; of a tokenizer.json, or where there is none, of vocab.json."""
    for file in (folder / "tokenizer.json", folder / "vocab.json"):
        try:
            stat = file.stat()
        except OSError:
            continue
        return _pieces_of(file, stat.st_mtime_ns, stat.st_size, num_rows)
    return {}


@lru_cache(maxsize=8)
def _pieces_of(file: Path, _mtime_ns: int, _size: int, num_rows: int) -> dict[str, int]:
    """It takes a tenth of a second, and a start asks several times."""
    try:
        text = file.read_text(encoding="utf-8")
        begin = _VOCABULARY.search(text) if file.name == "tokenizer.json" else None
        listed = json.JSONDecoder().raw_decode(text, begin.end() if begin is not None else 0)[0]
    except (OSError, ValueError, RecursionError):
        return {}
    if isinstance(listed, list):  # Unigram: [text, score], and the id is the place
        listed = {str(one[0]): place for place, one in enumerate(listed[num_rows:], num_rows) if one}
    if not isinstance(listed, dict) or (begin is None and file.name == "tokenizer.json"):
        return {}
    return {text: number for text, number in listed.items() if isinstance(number, int) and number >= num_rows}


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
