"""Pieces of many answers to one request: whoever else streams has a turn in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from qserve.engines.transformers.worker.api.answer import encoded
from qserve.engines.transformers.worker.engine import Piece, merged

NUM_ANSWERS, NUM_PIECES = 128, 20


async def answer(fails_after: int = NUM_PIECES) -> AsyncGenerator[Piece]:
    """All of it is there already, as where writing it down takes longer than drawing it."""
    for number in range(NUM_PIECES):
        if number == fails_after:
            raise ValueError("one fails")
        yield Piece("a", (), number + 1)


async def test_others_have_their_turn_among_the_pieces_of_many_answers() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await asyncio.sleep(0)
    in_a_row, longest, last, found = 0, 0, turns, [0] * NUM_ANSWERS
    async for index, piece in merged([answer() for _ in range(NUM_ANSWERS)]):
        in_a_row = in_a_row + 1 if turns == last else 1
        last, longest = turns, max(longest, in_a_row)
        found[index] += 1
        assert piece.num_tokens == found[index], "each answer's pieces come in their order"
    beside.cancel()
    assert found == [NUM_PIECES] * NUM_ANSWERS
    assert longest <= 64, f"{longest} pieces were written down while another stream waited"


async def test_an_error_ends_all_however_many_wait() -> None:
    with pytest.raises(ValueError, match="one fails"):
        async for _ in merged([answer(), *(answer(fails_after=3) for _ in range(NUM_ANSWERS))]):
            pass


@pytest.mark.parametrize("num_choices", [0, 1, 2, NUM_ANSWERS])
async def test_many_whole_answers_are_written_down_one_by_one(num_choices: int) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    choices = [{"index": index, "text": '"choices":[]'} for index in range(num_choices)]
    whole = {"id": '"choices":[]', "choices": choices, "usage": {"total_tokens": 3}}
    parts = await encoded(whole)
    beside.cancel()
    assert b"".join(parts) == msgspec.json.encode(whole)
    assert turns >= (num_choices if num_choices > 1 else 0)
    assert num_choices < 2 or len(parts) == num_choices + 2
