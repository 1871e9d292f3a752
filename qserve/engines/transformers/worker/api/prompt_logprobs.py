"""vLLM's `prompt_logprobs`: of each token of a prompt its log-probability and rank, and of the likeliest there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from qserve.engines.transformers.worker.batching.prompt_logprobs import ScoredPrompt
from qserve.engines.transformers.worker.prompts.token_text import TokenText

__all__ = ["prompt_logprobs"]

# A few milliseconds with twenty alternatives each.
_TOKENS_AT_ONCE = 128
# No character has more bytes.
_MOST_BEFORE = 4
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


async def prompt_logprobs(naming: TokenText, prompt: Sequence[int], scored: ScoredPrompt) -> list[msgspec.Raw | None]:
    """An entry for each token, as JSON: the token first, then the likeliest, by their ids. None for the first token.

    Streams of others go on in between.
    """
    found: list[msgspec.Raw | None] = [None]
    for position in range(1, len(prompt)):
        token_id, logprob, rank = prompt[position], scored.logprobs[position], scored.ranks[position]
        before = prompt[max(0, position - _MOST_BEFORE) : position]
        ranked = [(token_id, logprob, rank), *((one, value, at) for at, (one, value) in _top(scored, position))]
        entry = {str(one): _entry(naming, before, one, value, at) for one, value, at in ranked}
        found.append(msgspec.Raw(msgspec.json.encode(entry)))
        if position % _TOKENS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return found


def _top(scored: ScoredPrompt, position: int) -> Sequence[tuple[int, tuple[int, float]]]:
    return list(enumerate(scored.top[position], 1))


def _entry(
    naming: TokenText, before: Sequence[int], token_id: int, logprob: float | None, rank: int | None
) -> dict[str, float | int | str | None]:
    return {"logprob": logprob, "rank": rank, "decoded_token": _decoded(naming, before, token_id)}


def _decoded(naming: TokenText, before: Sequence[int], token_id: int) -> str:
    """The text of a token; what begins before it where it ends a character, and nothing where none has ended."""
    text = _text(naming, [token_id])
    for num_before in range(1, len(before) + 1) if text.endswith(_UNFINISHED) else ():
        context = before[-num_before:]
        text = _text(naming, [*context, token_id])
        if not text.endswith(_UNFINISHED):
            num_whole = num_before
            while num_whole and _text(naming, context[num_whole - 1 : num_whole]).endswith(_UNFINISHED):
                num_whole -= 1
            return text.removeprefix(_text(naming, context[:num_whole]))
    return "" if text.endswith(_UNFINISHED) else text


def _text(naming: TokenText, token_ids: Sequence[int]) -> str:
    return b"".join(map(naming.raw, token_ids)).decode(errors="replace")
