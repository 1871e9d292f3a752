"""The tokens that a grammar chooses from, as llguidance takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llguidance import LLTokenizer
from llguidance._tokenizer import TokenizerWrapper
from tokenizers import Tokenizer

from qserve.engines.transformers.worker.prompts.token_text import TokenText

__all__ = ["Vocabulary", "token_table", "vocabulary_of"]


class _Wrapped:
    """What the library asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocabulary: Vocabulary) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = vocabulary.end
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self._of_byte = {token: number for number, token in enumerate(self.tokens) if len(token) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode()
        ids: list[int] = self._tokenizer.encode(whole, add_special_tokens=False).ids
        if max(ids, default=0) < len(self.tokens):
            return ids
        # It holds a token that the model has no row for: byte by byte it has none.
        return [self._of_byte[bytes([one])] for one in whole.encode() if bytes([one]) in self._of_byte]


@dataclass(frozen=True)
class Vocabulary:
    """`tokens` are the bytes of each id, empty where no text has it; `end_ids` end an answer."""

    tokens: list[bytes]
    special_ids: list[int]
    end_ids: list[int]

    @property
    def end(self) -> int:
        return self.end_ids[0] if self.end_ids else 0


def vocabulary_of(tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]) -> Vocabulary:
    """Of a model."""
    text = TokenText(tokenizer)
    added = tokenizer.get_added_tokens_decoder()
    special = [token_id for token_id, token in added.items() if token.special and token_id < vocab_size]
    ends = sorted(token_id for token_id in eos_token_ids if token_id < vocab_size)
    return Vocabulary([text.raw(token_id) for token_id in range(vocab_size)], special, ends)


def token_table(tokenizer: Tokenizer, vocabulary: Vocabulary) -> LLTokenizer:
    """The vocabulary as a tree of bytes; a second for 152,000 tokens, in which no other thread runs."""
    wrapper: Any = TokenizerWrapper(_Wrapped(tokenizer, vocabulary))
    return LLTokenizer(wrapper, n_vocab=len(vocabulary.tokens), eos_token=vocabulary.end_ids or None)
