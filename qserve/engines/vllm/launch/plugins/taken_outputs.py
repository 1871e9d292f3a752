"""Outputs of the engine as vLLM's server took them: in portions, each of some tokens of some choices."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["OtherTokens", "Portion", "TakenAgain", "tokens_by_choice"]


class OtherTokens(RuntimeError):
    """The engine drew other tokens than are known."""


class Portion(NamedTuple):
    """What was taken at once.

    Attributes:
        num_cached: tokens of the prompt that were in the cache.
        choices: by choice, in the output's order, its new tokens.
    """

    num_cached: int | None
    choices: Sequence[tuple[int, Sequence[int]]]

    @classmethod
    def of(cls, output: Any) -> Portion:
        """Of a `RequestOutput` of new tokens."""
        return cls(output.num_cached_tokens, [(one.index, list(one.token_ids)) for one in output.outputs])


def tokens_by_choice(portions: Iterable[Portion], num_choices: int) -> list[list[int]]:
    """Of one request, in the order in which they were taken."""
    tokens: list[list[int]] = [[] for _ in range(num_choices)]
    for portion in portions:
        for index, some in portion.choices:
            tokens[index].extend(some)
    return tokens


class TakenAgain:
    """Puts outputs of a token each together as they were taken the first time; what is new passes as it comes."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = list(portions)
        self._num_cached = portions[0].num_cached if portions else None
        self._held: list[Any] = []

    async def of(self, outputs: AsyncGenerator[Any]) -> AsyncGenerator[tuple[Any, bool]]:
        """Each with whether it is new. Raises OtherTokens where other tokens come than are known, or fewer."""
        async for output in outputs:
            if self._num_cached is not None:
                output.num_cached_tokens = self._num_cached
            if not self._portions:
                yield output, True
                continue
            self._held.append(output)
            while self._portions and (portion := self._whole(self._portions[0])) is not None:
                del self._portions[0]
                yield portion, False
            if not self._portions:
                for later in self._held:
                    yield later, True
                self._held = []
        if self._portions:
            raise OtherTokens(f"the answer ended {len(self._portions)} outputs before its first end")

    def _whole(self, portion: Portion) -> Any:
        """One output of all that `portion` has; None where some of it has not come."""
        parts: list[Any] = []
        for index, tokens in portion.choices:
            own = [one for one in self._held if one.outputs[0].index == index][: len(tokens)]
            drawn = [token for one in own for token in one.outputs[0].token_ids]
            if drawn != list(tokens)[: len(drawn)]:
                raise OtherTokens(f"choice {index} drew {drawn} where {list(tokens)} are known")
            if len(drawn) < len(tokens):
                return None
            parts += own
        first, *others = parts
        for one in others:
            first.add(one, aggregate=True)
        self._held = [one for one in self._held if not any(one is part for part in parts)]
        return first
