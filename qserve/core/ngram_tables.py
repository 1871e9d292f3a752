"""Tables of n-gram embeddings (PLE, Engram): rows that the last few tokens choose by a hash, and how many there are.

A layer with a table looks one row up for each order of n-grams and each hash of it. Every hash has a range of rows of
its own, as large as a prime, so that none collides with another twice.
Source: transformers 5.19 modeling_qwen4_exp.py (Qwen4ExpTextNGramEmbedding, Qwen4ExpTextPLELayer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from qserve.core.model_parts import Sizes
from qserve.errors import BrokenCheckpoint

__all__ = ["NgramTables", "read_ngram_tables"]

_MOST_RANGES = 8192  # each is a search for a prime; the largest model that is known has 16
_WITNESSES = (2, 3, 5, 7)  # decide for every number below 3,215,031,751


@dataclass(frozen=True)
class NgramTables:
    """A table of embeddings in each of `layers` (by index), and what brings its rows into the residual stream.

    Attributes:
        layers: that have one.
        embed_dim: elements that a token gets from a table, over all of its hashes.
        conv_kernel_dim: of the convolution behind it, over every `ngram_size`-th token.
        ngram_size: tokens of the longest n-gram; the shortest has two.
        heads_per_ngram: hashes of each order.
        least_rows: of one hash.
        divisor: rows of a table are a multiple of it.
        dtype: in which the config says that they are stored; None: as the other weights, or by the quantization.

    """

    layers: tuple[int, ...]
    embed_dim: int
    conv_kernel_dim: int
    ngram_size: int
    heads_per_ngram: int
    least_rows: int
    divisor: int
    dtype: str | None = None

    @property
    def num_heads(self) -> int:
        """Rows that a token gets from one table."""
        return (self.ngram_size - 1) * self.heads_per_ngram

    @property
    def head_dim(self) -> int:
        """Elements of a row."""
        return self.embed_dim // self.num_heads

    @property
    def conv_state_tokens(self) -> int:
        """Tokens before a step's first that the convolution reads."""
        return (self.conv_kernel_dim - 1) * self.ngram_size

    @property
    def rows(self) -> tuple[int, ...]:
        """Of each table: the sum of its hashes' primes, which go on from table to table, up to the divisor."""
        primes = _primes(self.least_rows, len(self.layers) * self.num_heads)
        starts = range(0, len(primes), self.num_heads)
        return tuple(-(-sum(primes[start : start + self.num_heads]) // self.divisor) * self.divisor for start in starts)


def read_ngram_tables(sizes: Sizes, layer_types: tuple[str, ...], hidden_size: int) -> NgramTables | None:
    """Of a family that may have some; None where `ple_layer_ids` names no layer. Raises BrokenCheckpoint."""
    named = sizes.values.get("ple_layer_ids") or ()
    if not named:
        return None
    is_known = isinstance(named, list | tuple) and all(
        isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= len(layer_types) for one in named
    )
    if not is_known or any(layer_types[one - 1] != "linear_attention" for one in named):
        raise BrokenCheckpoint(
            f"{sizes.where}: ple_layer_ids is {str(named)[:80]}; it must list layers of linear attention, by numbers "
            f"from 1 to {len(layer_types)}"
        )
    found = NgramTables(
        layers=tuple(sorted({one - 1 for one in named})),
        embed_dim=sizes("ple_embed_dim", hidden_size),
        conv_kernel_dim=sizes("ple_conv_kernel_size", 4),
        ngram_size=sizes("ngram_size", 3, least=2),
        heads_per_ngram=sizes("heads_per_ngram", 8),
        least_rows=sizes("ngram_vocab_size_base", 20_000_000),
        divisor=sizes("make_ngram_vocab_size_divisible_by", 128),
        dtype=sizes.known_dtype("ple_embedding_dtype", sizes.values.get("ple_embedding_dtype")),
    )
    if found.embed_dim % found.num_heads or len(found.layers) * found.num_heads > _MOST_RANGES:
        raise BrokenCheckpoint(
            f"{sizes.where}: ple_embed_dim is {found.embed_dim}, which must divide by the {found.num_heads} hashes of "
            f"ngram_size and heads_per_ngram, {_MOST_RANGES} at most over all tables"
        )
    return found


@lru_cache(maxsize=64)
def _primes(least: int, count: int) -> tuple[int, ...]:
    """The first `count` primes from `least` on."""
    return tuple(one for one, _ in zip(_primes_from(least), range(count), strict=False))


def _primes_from(least: int) -> Iterator[int]:
    number = max(2, least)
    while True:
        if _is_prime(number):
            yield number
        number += 1


def _is_prime(number: int) -> bool:
    """By the test of Miller and Rabin, which is no guess for numbers of this size."""
    if number < 2 or any(number % prime == 0 for prime in _WITNESSES):
        return number in _WITNESSES
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, witness, odd, twos) for witness in _WITNESSES)


def _passes(number: int, witness: int, odd: int, twos: int) -> bool:
    power = pow(witness, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False
