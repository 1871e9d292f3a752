"""The random numbers of one request, by position: what it draws depends on nothing but its seed and its row."""

from __future__ import annotations

import secrets

import numpy as np

__all__ = ["Uniforms"]

_BLOCK = 64
# Numbers that Philox 4x64 makes of one counter.
_PER_COUNTER = 4
# So that a share of a sum never reaches the sum, whatever is rounded.
_BELOW_ONE = 1.0 - 2.0**-40


class Uniforms:
    """Numbers in [0, 1) by Philox, whose key is the seed and whose counter is the position."""

    def __init__(self, seed: int | None) -> None:
        """None: a seed that nobody knows."""
        self._key = secrets.randbits(64) if seed is None else seed % 2**64
        self._block = -1
        self._numbers: list[float] = []

    def at(self, position: int) -> float:
        """The number of a position, the same at every call."""
        block, index = divmod(position, _BLOCK)
        if block != self._block:
            philox = np.random.Philox(key=self._key, counter=block * (_BLOCK // _PER_COUNTER))
            numbers = np.random.Generator(philox).random(_BLOCK)
            self._block, self._numbers = block, np.minimum(numbers, _BELOW_ONE).tolist()
        return self._numbers[index]
