"""Keys of prompts that only those with the same salt find: the library names a page by its tokens, and by those before.

So the first tokens of a prompt are told to its books as others, by the salt: all names of pages follow from them. The
model never sees these tokens.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.engines.transformers.worker.batching.library_callbacks import sequence_of

__all__ = ["salt_prefixes", "salted"]

# 32 bits each. A page holds at least 16, and no page that is not whole is shared.
_NUM_SALTED = 8


def salted(token_ids: list[int], salt: str) -> list[int]:
    """What the books are told of a prompt; the same as it is without a salt."""
    if not salt:
        return token_ids
    begin = [token ^ mask for token, mask in zip(token_ids, _masks(salt), strict=False)]
    return [*begin, *token_ids[len(begin) :]]


@lru_cache(maxsize=1024)
def _masks(salt: str) -> array[int]:
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=4 * _NUM_SALTED)
    return array("i", digest.digest())


def salt_prefixes(processor: Any, found: Callable[[Sequence, int], None]) -> None:
    """From now on the library's `processor` shares the pages of a prompt among sequences of one salt.

    `found` is told how many tokens of a prompt were there.
    """
    cache, scheduler = processor.cache, processor.scheduler
    search, complete = cache.search_prefix_match, cache.mark_complete_blocks

    def search_salted(request_id: str, prompt_ids: list[int]) -> int:
        sequence = sequence_of(scheduler.waiting_requests[request_id])
        number: int = search(request_id, salted(prompt_ids, sequence.cache_salt))
        found(sequence, number)
        return number

    def complete_salted(state: Any, blocks: dict[str, int]) -> None:
        plain = state.initial_tokens
        state.initial_tokens = salted(plain, sequence_of(state).cache_salt)
        try:
            complete(state, blocks)
        finally:
            state.initial_tokens = plain

    cache.search_prefix_match, cache.mark_complete_blocks = search_salted, complete_salted
