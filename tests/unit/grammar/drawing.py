"""A sampler that knows nothing but the masks: what it writes is as random as a grammar allows."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from qserve.demo import chat_model_path
from qserve.engines.transformers.worker.grammar.compiled import Grammars

__all__ = ["ENDS", "TOKENIZER", "drawn", "ready"]

TOKENIZER = Tokenizer.from_file(str(chat_model_path() / "tokenizer.json"))
ENDS = frozenset({TOKENIZER.token_to_id("<|im_end|>"), TOKENIZER.token_to_id("<|endoftext|>")})
_GRAMMARS = Grammars(TOKENIZER, TOKENIZER.get_vocab_size(), ENDS)
_CLOSING = frozenset(TOKENIZER.encode('"}],</>\n', add_special_tokens=False).ids)


def ready(grammar: str) -> Any:
    """The matcher of a grammar. Raises GrammarTooComplex."""
    return asyncio.run(_GRAMMARS.ready(grammar)).matcher


def drawn(grammar: str, rng: Random, most: int = 2000) -> str:
    """A random text of the grammar; what closes something is drawn more often, so that it ends."""
    matcher, ids = ready(grammar).deep_copy(), []
    while len(ids) < most:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert allowed and not matcher.is_error(), matcher.get_error()
        closing = sorted(_CLOSING.intersection(allowed))
        if ENDS.intersection(allowed) and (len(allowed) == len(ENDS) or rng.random() < 0.5):
            return TOKENIZER.decode(ids, skip_special_tokens=False)
        choices = [one for one in (closing if closing and rng.random() < 0.5 else allowed) if one not in ENDS]
        ids.append(rng.choice(choices))
        matcher.consume_token(ids[-1])
    raise AssertionError(f"no end after {most} tokens: {TOKENIZER.decode(ids[:200])}")
