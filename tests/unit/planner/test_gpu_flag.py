"""What a printed command names as a card is that card again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import known_gpus, parse_gpu
from qserve.planner.search.gpu_flag import gpu_flag

DESCRIBED = (
    "memory=2GiB",
    "memory=2GiB,sm=10,cc=7.5",
    "memory=24GiB,sm=40,cc=7.5,used=8GiB,name=a card of ours",
    "memory=23.6GiB,sm=128,bandwidth=1008GB,cc=8.9",
    "like=rtx-4090,memory=48GiB",
    "like=m4-max-64gb,memory=56GiB",
    "like=mi300x,used=4GiB",
    "like=h100-sxm,sm=66,memory=40GiB",
)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("text", DESCRIBED)
def test_a_card_is_read_back_as_it_was_described(text: str, count: int) -> None:
    (card,) = parse_gpu(text)
    assert parse_gpu(gpu_flag(card, count)) == (card,) * count


def test_every_card_of_the_tables_is_read_back_by_its_name() -> None:
    for card in known_gpus().values():
        assert "=" not in gpu_flag(card) and parse_gpu(gpu_flag(card, 2)) == (card, card)


def test_a_card_of_which_more_is_held_than_it_has_is_written_as_well() -> None:
    """A reward model that does not fit is counted as others' memory beside a chat model."""
    (table,) = parse_gpu("rtx-3060")
    held = replace(table, used_by_others_bytes=table.total_bytes + 1)
    assert f"used={table.total_bytes + 1}" in gpu_flag(held)


@pytest.mark.parametrize("name", ["rtx-4090", "mi300x", "m4-max-64gb", "h100-sxm"])
def test_a_card_that_is_here_is_read_back_with_what_its_driver_told(name: str) -> None:
    """Its memory differs by some MiB, others hold some of it; its own number is not said."""
    (table,) = parse_gpu(name)
    here = replace(table, total_bytes=table.total_bytes - 2**20, used_by_others_bytes=2**28, uuid="GPU-1")
    assert parse_gpu(gpu_flag(here)) == (replace(here, uuid=""),)
