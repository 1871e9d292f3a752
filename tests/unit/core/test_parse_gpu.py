"""`--gpu` descriptions: what they mean, and what a mistyped one says."""

from __future__ import annotations

import dataclasses

import pytest

from qserve.core.hardware import CpuFeatures, Hardware, formats_of, known_gpus, parse_gpu
from qserve.errors import UsageError
from qserve.units import GIB


def test_a_count_repeats_the_card() -> None:
    cards = parse_gpu("rtx-4090:2")
    assert len(cards) == 2
    assert cards[0] == cards[1] == known_gpus()["rtx-4090"]


@pytest.mark.parametrize("text", ["RTX 4090", "NVIDIA GeForce RTX 4090", "rtx_4090", "4090", " rtx-4090 "])
def test_a_card_may_be_named_as_people_write_it(text: str) -> None:
    assert parse_gpu(text)[0].name == "NVIDIA GeForce RTX 4090"


def test_the_totals_are_the_drivers() -> None:
    assert parse_gpu("h100-80gb")[0].total_bytes == pytest.approx(79.19 * GIB, abs=0.01 * GIB)
    assert parse_gpu("rtx-4090")[0].total_bytes < 24 * GIB


def test_a_description_gives_every_field() -> None:
    (first, second) = parse_gpu("memory=23.6GiB,sm=128,count=2,bandwidth=1008GB/s,cc=8.9,used=1GiB,name=mine")
    assert first == second
    assert first.total_bytes == round(23.6 * GIB)
    assert first.available_bytes == round(23.6 * GIB) - GIB
    assert (first.sm_count, first.bandwidth_bytes_per_s, first.name) == (128, 1008 * 10**9, "mine")
    assert first.supports("fp8")
    assert not first.supports("fp4")


def test_a_bare_description_counts_as_ampere() -> None:
    (card,) = parse_gpu("memory=24GiB")
    assert card.supports("bf16")
    assert not card.supports("fp8")
    assert (card.sm_count, card.bandwidth_bytes_per_s) == (0, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rtx-4091", "near matches: rtx-4090"),
        ("toaster", "can be described"),
        ("", "not a card"),
        ("rtx-4090:0", "whole number from 1"),
        ("rtx-4090:two", "'two'"),
        ("sm=128", "names no memory"),
        ("memory=0", "above 0"),
        ("memory=8GiB,used=9GiB", "at least as large as used"),
        ("memory=8GiB,cores=2", "'cores=2'"),
        ("memory=8GiB,memory=9GiB", "each once"),
        ("memory=8GiB,cc=ampere", "compute capability"),
        ("memory=lots", "not a size in memory"),
        ("memory=8GiB,sm=-1", "sm is '-1'"),
    ],
)
def test_a_mistake_says_what_was_seen_and_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("(", r"\(")):
        parse_gpu(text)


def test_formats_by_generation() -> None:
    assert formats_of((7, 0)) == ("fp16",)
    assert "bf16" not in formats_of((7, 5))
    assert "fp8" not in formats_of((8, 6))
    assert "fp8" in formats_of((8, 9))
    assert "fp4" in formats_of((12, 0))


def test_the_cpu_is_a_device_too() -> None:
    hardware = Hardware((), 24 * GIB, 20 * GIB, 2, CpuFeatures("EPYC", frozenset({"avx512_bf16", "avx512_vnni"})))
    assert hardware.cpu_device.kind == "cpu"
    assert hardware.cpu_device.available_bytes == 20 * GIB
    assert hardware.cpu_device.formats == ("bf16", "int8")


def test_devices_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        parse_gpu("rtx-4090")[0].total_bytes = 1  # type: ignore[misc]
