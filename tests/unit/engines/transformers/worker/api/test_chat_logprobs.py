"""Entries of a chat's log-probabilities are the JSON that OpenAI's clients read, whatever the token."""

from __future__ import annotations

import json

import msgspec
from tokenizers import Tokenizer

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.api.chat_logprobs import ChatLogprobs
from qserve.engines.transformers.worker.prompts.token_text import TokenText
from qserve.engines.transformers.worker.sampling.params import LOWEST_LOGPROB, TokenChoice

NAMING = TokenText(Tokenizer.from_file(str(chat_model_path() / "tokenizer.json")))
NUM_TOKENS = 1280


def entry(token_id: int, logprob: float | None) -> dict[str, object]:
    return {"token": NAMING.label(token_id), "logprob": logprob, "bytes": list(NAMING.raw(token_id))}


def test_every_token_is_written_as_it_is_and_once_more_from_what_was_kept() -> None:
    entries = ChatLogprobs(NAMING)
    for _ in range(2):
        for token_id in range(NUM_TOKENS + 2):  # two that the vocabulary lacks
            logprob = -1e-7 * token_id
            top = tuple((token_id + more, -0.1 * more) for more in range(3))
            meant = entry(token_id, logprob) | {"top_logprobs": [entry(*one) for one in top]}
            assert json.loads(msgspec.json.encode(entries.of(TokenChoice(token_id, logprob, top)))) == meant


def test_numbers_that_are_none_or_tiny_and_no_alternatives() -> None:
    entries = ChatLogprobs(NAMING)
    for logprob in (None, LOWEST_LOGPROB, 0.0, -1e-30, -123456789.125):
        said = msgspec.json.encode({"content": [entries.of(TokenChoice(5, logprob))]})
        assert json.loads(said) == {"content": [entry(5, logprob) | {"top_logprobs": []}]}
