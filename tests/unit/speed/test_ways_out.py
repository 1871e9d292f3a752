"""What is offered where targets are missed: each change, made as it is told, keeps them."""

from __future__ import annotations

import shlex

import pytest

from tests.unit.speed.test_plan_for_load import plan

SLOW = {
    "fast tokens of many streams": ["--model", "Qwen/Qwen3-30B-A3B", "--gpu", "rtx-3090:2", "--concurrency", "64",
                                    "--ttft", "500ms", "--tpot", "15ms"],
    "many at once": ["--model", "Qwen/Qwen3-8B", "--gpu", "l4", "--burst", "100", "--ttft", "2s"],
    "ranks that are given": ["--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:1", "--tensor-parallel-size", "1",
                             "--quant", "bf16", "--rps", "12", "--ttft", "1s", "--tpot", "50ms"],
}  # fmt: skip


def changed(asked: list[str], flags: str) -> list[str]:
    """The command with the flags of a suggestion in the place of its own."""
    words = dict(zip(asked[::2], asked[1::2], strict=True))
    given = shlex.split(flags)
    words |= dict(zip(given[::2], given[1::2], strict=True))
    return [word for pair in words.items() for word in pair]


@pytest.mark.parametrize(
    ("name", "offered"),
    [
        ("fast tokens of many streams", {"--gpu": "h200:2", "--concurrency": "4"}),
        ("many at once", {"--gpu": "h100-sxm", "--burst": "12"}),
        ("ranks that are given", {"--gpu": "h100-sxm:4", "--rps": "2.4"}),
    ],
)
def test_each_way_out_keeps_the_targets_as_it_is_told(name: str, offered: dict[str, str]) -> None:
    """Fewer requests down to one, another card where more of the same do not help, and ranks where they were given."""
    speed = plan(*SLOW[name])["speed"]
    assert not speed["targets"]["met"]
    ways = [one["command"] for one in speed["suggestions"]]
    assert {one.split()[0]: one.split()[1] for one in ways} == offered
    for flags in ways:
        assert plan(*changed(SLOW[name], flags))["speed"]["targets"]["met"], flags


def test_where_nothing_helps_the_plan_says_what_was_tried() -> None:
    found = plan("--model", "Qwen/Qwen3-8B", "--gpu", "l4", "--concurrency", "2", "--tpot", "0.1ms")
    assert not found["speed"]["suggestions"]
    assert any(note.startswith("nothing that was tried keeps the targets") for note in found["notes"])
