"""The planner's promises, on published figures. Each limit is the one that docs/results/planner.md states."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import pytest

from tests.golden.accuracy import Comparison, Skipped, compare_all


@cache
def compared() -> tuple[Comparison, ...]:
    return tuple(item for item in compare_all() if isinstance(item, Comparison) and item.untrusted is None)


def pick(
    term: str, engine: str = "", release: tuple[int, int] = (0, 0), until: tuple[int, int] = (99, 0)
) -> list[float]:
    found = [
        abs(item.error)
        for item in compared()
        if item.term == term and item.group.startswith(engine) and release <= _release(item.group) < until
    ]
    assert found, f"no row of {term} {engine}"
    return found


def _release(group: str) -> tuple[int, int]:
    major, minor = group.split(" ")[1].split(".")
    return int(major), int(minor)


def mean(errors: Iterable[float]) -> float:
    values = list(errors)
    return sum(values) / len(values)


def test_weights() -> None:
    errors = pick("weights")
    assert mean(errors) <= 0.005
    assert max(errors) <= 0.02


def test_vllm_kv_tokens() -> None:
    assert mean(pick("KV tokens", "vllm", (0, 17))) <= 0.015
    assert mean(pick("KV tokens", "vllm", until=(0, 17))) <= 0.04


def test_vllm_activations() -> None:
    assert mean(pick("activations", "vllm")) <= 0.05


def test_transformers_peaks() -> None:
    errors = pick("peak", "transformers")
    assert mean(errors) <= 0.01
    assert max(errors) <= 0.06


@pytest.mark.parametrize("term", ["concurrency, KV bytes given", "KV tokens, KV bytes given"])
def test_hybrid_pages(term: str) -> None:
    assert max(pick(term)) <= 0.01


def test_every_row_is_compared_or_has_a_reason() -> None:
    for item in compare_all():
        assert not isinstance(item, Skipped) or item.reason
