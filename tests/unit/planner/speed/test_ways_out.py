"""What is offered where targets are missed: each change, made as it is told, keeps them."""

from __future__ import annotations

import shlex

import pytest

from qserve.core.hardware import parse_gpu
from tests.unit.planner.speed.test_plan_for_load import plan

SLOW = {
    "fast tokens of many streams": [
        "--model",
        "Qwen/Qwen3-30B-A3B",
        "--gpu",
        "rtx-3090:2",
        "--concurrency",
        "64",
        "--ttft",
        "500ms",
        "--tpot",
        "15ms",
    ],
    "many at once": ["--model", "Qwen/Qwen3-8B", "--gpu", "l4", "--burst", "100", "--ttft", "2s"],
    "ranks that are given": [
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "h100-sxm:1",
        "--tensor-parallel-size",
        "1",
        "--quant",
        "bf16",
        "--rps",
        "12",
        "--ttft",
        "1s",
        "--tpot",
        "50ms",
    ],
}


def flags_of(words: list[str]) -> dict[str, str]:
    """Flags and their values."""
    valued = [word for word in words if word != "--no-learn"]
    return dict(zip(valued[::2], valued[1::2], strict=True))


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("fast tokens of many streams", {"--gpu": "h200:2", "--concurrency": "8"}),
        ("many at once", {"--gpu": "h100-sxm", "--burst": "12"}),
        ("ranks that are given", {"--gpu": "h100-sxm:4", "--tensor-parallel-size": "4", "--rps": "1.9"}),
    ],
)
def test_each_way_out_keeps_the_targets_as_it_is_told(name: str, offered: dict[str, str]) -> None:
    """Fewer requests down to one, another card where more of the same do not help, and ranks where they were given."""
    speed = plan(*SLOW[name])["speed"]
    assert not speed["targets"]["met"]
    ways = [flags_of(one["command"].split()[2:]) for one in speed["suggestions"]]
    given = flags_of(SLOW[name])
    assert {flag: value for way in ways for flag, value in way.items() if given.get(flag) != value} == offered
    for way in ways:
        assert plan(*(word for pair in way.items() for word in pair))["speed"]["targets"]["met"], way


@pytest.mark.parametrize(
    "gpu",
    [
        "memory=2GiB,sm=10,cc=7.5",
        "memory=2GiB,sm=10,cc=7.5,name=a card of 'ours'",
        "memory=2GiB,sm=10,bandwidth=100GB",
        "like=t4,memory=2GiB",
        "memory=2GiB,used=64MiB",
    ],
)
def test_more_of_a_described_card_are_described_as_well(gpu: str) -> None:
    """Names with spaces are quoted, and what is offered plans the same cards."""
    asked = ["--model", "Qwen/Qwen3-0.6B", "--concurrency", "8", "--input", "30000"]
    ways = [shlex.split(one["command"])[2:] for one in plan(*asked, "--gpu", gpu)["speed"]["suggestions"]]
    more = next(words for words in ways if "count=" in words[words.index("--gpu") + 1])
    found, (card,) = parse_gpu(more[more.index("--gpu") + 1]), parse_gpu(gpu)
    assert found == (card,) * len(found) and len(found) > 1
    assert plan(*more)["speed"]["requests_per_s"]["value"] > 0


def test_where_nothing_helps_the_plan_says_what_was_tried() -> None:
    found = plan("--model", "Qwen/Qwen3-8B", "--gpu", "l4", "--concurrency", "2", "--tpot", "0.1ms")
    assert not found["speed"]["suggestions"]
    assert any(note.startswith("Nothing that was tried keeps the targets") for note in found["notes"])
