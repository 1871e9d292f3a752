"""Recent prompt prefixes of each replica, as hashes of blocks of bytes: no tokenizer, bounded memory.

Hashes are chained: one block's hash stands for everything before it as well. They are Python's own, which every process
seeds anew, so that no client can choose prompts whose hashes meet.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["BLOCK_BYTES", "MAX_BLOCKS", "PrefixTable", "prefix_blocks"]

BLOCK_BYTES = 128
"""About 32 tokens: engines share prefixes by pages of 16 to 256."""
_MOST_BLOCKS = 256
MAX_BLOCKS = 31_250
"""Blocks of one replica: 4 MB of prompts, in about as much memory."""

# Where the prompt begins in a body: fields before it (user, seed) must not hide it.
_PROMPT_NAMES = (b'"messages"', b'"prompt"', b'"input"', b'"tools"', b'"system"')
_LOOKED_AT_BYTES = 4096


def prefix_blocks(body: bytes, model: str | None, salt: str = "") -> tuple[int, ...]:
    """The chained hashes of the whole blocks at the beginning of the prompt in this JSON body, at most 256.

    Prompts of different salts have none in common, as in the engine's cache (`gateway/relay/cache_salts.py`).
    Fields after the messages affect only the last block, which a longer conversation would change anyway.
    """
    found = [at for name in _PROMPT_NAMES if (at := body.find(name, 0, _LOOKED_AT_BYTES)) >= 0]
    begin = min(found, default=0)
    end = min(len(body), begin + _MOST_BLOCKS * BLOCK_BYTES)
    chain = hash((model, salt))
    blocks = []
    for at in range(begin, end - BLOCK_BYTES + 1, BLOCK_BYTES):
        chain = hash((chain, body[at : at + BLOCK_BYTES]))
        blocks.append(chain)
    return tuple(blocks)


class PrefixTable:
    """The blocks of one replica; the least recently used are evicted first.

    A block is never remembered without those before it: each `add` touches a chain from its end to its beginning.
    """

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._held: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def num_matched(self, blocks: Sequence[int]) -> int:
        """Number of leading blocks that this replica has seen."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self._held:
                low = middle
            else:
                high = middle - 1
        return low

    def add(self, blocks: Sequence[int]) -> None:
        """Note the blocks of a request sent to this replica."""
        for block in reversed(blocks[: self._max_blocks]):
            self._held[block] = None
            self._held.move_to_end(block)
        while len(self._held) > self._max_blocks:
            self._held.popitem(last=False)

    def clear(self) -> None:
        """The replica was restarted: its cache is empty."""
        self._held.clear()
