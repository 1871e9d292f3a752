"""A request for many sequences as requests for one each, for an engine that would begin all of them at once.

vLLM has one queue, first come, first served, and knows no clients. Sequence by sequence a request waits in ours, where
clients take turns (`admission`). Each portion is what vLLM makes of it itself: an answer of its own with the seed
counted on. What can't be parted (beam search, embeddings, large bodies) is sent as it is, and takes its slots at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

__all__ = ["MOST_BYTES", "Portion", "Portions", "portions_of"]

_SEED_MAX = 2**63 - 1
# Reading it, and writing it for each portion, holds the event loop: 40 ms and 4 ms of a core at most.
MOST_BYTES = 1 << 20
# Below it vLLM draws the likeliest token, and refuses to do so several times.
_GREEDY = 1e-5


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """One sequence of a request.

    Attributes:
        choice: its place among all choices of the answer.
        is_first: of its prompt: the prompt's tokens count once.
        fields: what its body has in the place of the request's.
    """

    choice: int
    is_first: bool
    fields: Mapping[str, Any]


Portions = tuple[Callable[[Portion], bytes], list[Portion]]
"""What makes the body of a portion, and all portions of a request."""
_Split = Callable[[dict[str, Any]], Iterator[Portion]]


def portions_of(path: str, body: bytes) -> Portions | None:
    """Its portions, and what makes the body of each; None where it can't be parted."""
    split = _SPLITS.get(path)
    if split is None or len(body) > MOST_BYTES:
        return None
    value: dict[str, Any] = from_json(body)
    if value.get("use_beam_search") or value.get("prompt_embeds") is not None:
        return None
    portions = list(split(value))
    return (lambda portion: to_json({**value, **portion.fields}), portions) if len(portions) > 1 else None


def _answers(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`n` and `seed` of each of `n` answers; none where the engine is to say what is wrong with them."""
    n, seed, temperature = params.get("n") or 1, params.get("seed"), params.get("temperature")
    if n > 1 and temperature is not None and temperature < _GREEDY:
        return []
    if not isinstance(seed, int):
        return [{"n": 1}] * n
    return [{"n": 1, "seed": seed + index} for index in range(n)] if seed + n - 1 <= _SEED_MAX else []


def _of_chat(body: dict[str, Any]) -> Iterator[Portion]:
    for index, fields in enumerate(_answers(body)):
        yield Portion(index, index == 0, fields)


def _of_completion(body: dict[str, Any]) -> Iterator[Portion]:
    prompt, answers = body.get("prompt"), _answers(body)
    is_list = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    for place, one in enumerate(prompt if is_list and isinstance(prompt, list) else [prompt]):
        for index, fields in enumerate(answers):
            yield Portion(place * len(answers) + index, index == 0, {**fields, "prompt": one})


def _of_tokens(body: dict[str, Any]) -> Iterator[Portion]:
    params = body.get("sampling_params") or {}
    for index, fields in enumerate(_answers(params)):
        yield Portion(index, index == 0, {"sampling_params": {**params, **fields}})


def _of_conversations(body: dict[str, Any]) -> Iterator[Portion]:
    for place, one in enumerate(body.get("messages") or ()):
        yield Portion(place, True, {"messages": [one]})


_SPLITS: Mapping[str, _Split] = {
    "/v1/chat/completions": _of_chat,
    "/v1/completions": _of_completion,
    "/inference/v1/generate": _of_tokens,
    "/v1/chat/completions/batch": _of_conversations,
}
