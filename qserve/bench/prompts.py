"""Synthetic prompts: common words in random order, of exactly so many tokens."""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from qserve.bench.counting import Counter
from qserve.bench.endpoints import Prompt
from qserve.errors import UsageError

__all__ = ["Synthetic", "TextMaker"]

_COMMON = (
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what "
    "all were when we there can an your which their said if do will each about how up out them then she many some "
    "so these would other into has more her two like him see time could no make than first been its who now people "
    "my made over did down only way find use may water long little very after words called just where most know get "
    "through back much before go good new write our used me man too any day same right look think also around "
    "another came come work three word must because does part even place well such here take why things help put "
    "years different away again off went old number great tell men say small every found still between name should "
    "home big give air line set own under read last never us left end along while might next sound below saw "
    "something thought both few those always looked show large often together asked house world going want school "
    "important until form food keep children feet land side without boy once animals life enough took sometimes "
    "four head above kind began almost live page got earth need far hand high year mother light parts country "
    "father let night following picture being study second eyes soon times story boys since white days ever paper "
    "hard near sentence better best across during today others however sure means knew try told young miles sun "
    "ways thing whole hear example heard several change answer room sea against top turned learn point city play "
    "toward five using himself usually "
)
_WORDS = _COMMON.split()
_MOST_TRIES = 50
_TRUSTED_AFTER = 16


class TextMaker:
    """Texts of an exact number of tokens, different ones each time: no cache of prefixes helps anybody.

    Words that are one token each, alone and after another word, add up; where a tokenizer knows few of them, letters
    do. Each text is counted again, and made anew should it not be exact; where counting is a question to the server,
    only until so many in a row were exact at once.
    """

    def __init__(self, counter: Counter) -> None:
        self._count = counter.count
        self._num_to_check = _TRUSTED_AFTER if counter.is_remote else math.inf
        self._words, self._between = _single_tokens(counter)

    def text(self, num_tokens: int, rng: random.Random) -> str:
        """Raises UsageError where no text of that length could be made."""
        words = rng.choices(self._words, k=num_tokens)
        if self._num_to_check <= 0:
            return self.joined(*words)
        for tried in range(_MOST_TRIES):
            over = self._count(self.joined(*words)) - num_tokens
            if not over:
                self._num_to_check = self._num_to_check - 1 if tried == 0 else math.inf
                return self.joined(*words)
            words = words[:-over] if over > 0 else words + rng.choices(self._words, k=-over)
            words = words or rng.choices(self._words, k=num_tokens)
        raise UsageError(f"no text of exactly {num_tokens} tokens could be made with this tokenizer; use --dataset")

    def joined(self, *texts: str) -> str:
        """One after another, so that tokens add up."""
        return self._between.join(texts)


def _single_tokens(counter: Counter) -> tuple[list[str], str]:
    """(words, what stands between them)."""
    if counter.count(" ".join(_WORDS)) == len(_WORDS):
        return _WORDS, " "  # as every large vocabulary has it: one question instead of hundreds
    base = counter.count("a")
    found = [word for word in _WORDS if counter.count(word) == base and counter.count(f"a {word}") == base + 1]
    if found:
        return found, " "
    return list(string.ascii_lowercase), ""  # a space is a token of its own, as where bytes are tokens


@dataclass(frozen=True)
class Synthetic:
    """An endless supply of prompts.

    Attributes:
        input_len, output_len: tokens, of the prompt's own text and to generate.
        prefix, prefix_len: text in front of every prompt, and its tokens; they come on top of `input_len`, as with
            vLLM's --random-prefix-len.
        range_ratio: both lengths vary evenly between (1 - r) and (1 + r) of that.
        best_of: answers that a reward request scores, each of `output_len` tokens.
    """

    maker: TextMaker
    input_len: int
    output_len: int
    prefix: str = ""
    prefix_len: int = 0
    range_ratio: float = 0.0
    best_of: int = 0

    def prompts(self, rng: random.Random) -> Iterator[Prompt]:
        """The same ones for the same seed."""
        while True:
            input_len, output_len = self._length(self.input_len, rng), self._length(self.output_len, rng)
            text = self.maker.text(input_len, rng)
            if self.prefix:
                text = self.maker.joined(self.prefix, text)
            answers = tuple(self.maker.text(self._length(self.output_len, rng), rng) for _ in range(self.best_of))
            yield Prompt(text, output_len, self.prefix_len + input_len, answers=answers)

    def _length(self, mean: int, rng: random.Random) -> int:
        low, high = round(mean * (1 - self.range_ratio)), round(mean * (1 + self.range_ratio))
        return max(1, rng.randint(low, high)) if self.range_ratio else mean
