"""The planner's promises, on published figures. Each limit is the one that docs/results/planner.md states."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.planner.packed import packed_base, packings_of
from tests.golden.accuracy import (
    FIFTH,
    HOLDOUT,
    MEASUREMENTS,
    SECOND,
    SEVENTH,
    SIXTH,
    THIRD,
    Comparison,
    Skipped,
    compare_all,
    read_rows,
)


@cache
def results(file: str, part: str | None = None) -> tuple[Comparison | Skipped, ...]:
    """Of a part of the hold-out what was found for the whole: a row is compared within its own start alone."""
    whole = tuple(compare_all(file)) if part is None else results(file)
    return whole if part is None else tuple(one for one in whole if one.row.part == part)


def compared(file: str = MEASUREMENTS, part: str | None = None) -> tuple[Comparison, ...]:
    return tuple(item for item in results(file, part) if isinstance(item, Comparison) and item.row.left_out is None)


def pick(
    term: str,
    engine: str = "",
    release: tuple[int, int] = (0, 0),
    until: tuple[int, int] = (99, 0),
    part: str | None = None,
) -> list[float]:
    """Errors of a term, of the published figures or of one part of the hold-out."""
    found = [
        abs(item.error)
        for item in compared(HOLDOUT if part else MEASUREMENTS, part)
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


def test_known_packings_have_the_bytes_of_the_files() -> None:
    """To a thousandth: tables of sizes round; a revision of several is the one whose size its source tells."""
    units = {"bytes": 1, "GB": 10**9, "GiB": 2**30}
    rows = [row for row in read_rows() if row.kind == "checkpoint" and packings_of(row.model)]
    assert len({row.model for row in rows}) >= 6
    for row in rows:
        config = bundled_config(packed_base(row.model) or "") or {}
        specs = [
            ModelSpec.from_config({**config, "quantization_config": one}, row.model)
            for _, one in packings_of(row.model)
        ]
        sizes = [sum(tensor.nbytes for tensor in tensors_of(spec)) for spec in specs]
        stated = row.value * units[row.unit]
        assert min(abs(size / stated - 1) for size in sizes) <= 0.001, (row.id, sizes)


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


def test_available_cache_of_hybrids() -> None:
    hybrids = [
        abs(item.error)
        for item in compared()
        if item.term == "KV bytes" and re.search(r"3\.[568]|Next", item.row.model)
    ]
    assert len(hybrids) >= 4
    assert mean(hybrids) <= 0.02


def test_the_holdout_is_no_part_of_the_figures_behind_the_constants() -> None:
    seen = {(row.model, row.quantity, row.value, json.dumps(row.config, sort_keys=True)) for row in read_rows()}
    held_out = read_rows(HOLDOUT)
    assert len(held_out) >= 15
    for row in held_out:
        assert (row.model, row.quantity, row.value, json.dumps(row.config, sort_keys=True)) not in seen


def test_weights_and_pages_hold_on_logs_that_nobody_had_seen() -> None:
    for part in ("first", SECOND, THIRD, FIFTH, SIXTH, SEVENTH):
        weights = pick("weights", part=part)
        assert mean(weights) <= 0.005
        assert max(weights) <= 0.02
        assert max(pick("concurrency, KV bytes given", part=part)) <= 0.01
        assert max(pick("KV tokens, KV bytes given", part=part)) <= 0.01


def test_the_cache_holds_on_the_first_hold_out() -> None:
    """Looser than on seen figures: docs/results/planner.md says what the plan does not know here."""
    assert mean(pick("KV bytes", part="first")) <= 0.015
    assert max(pick("KV bytes", part="first")) <= 0.05
    assert mean(pick("KV tokens", "vllm", (0, 17), part="first")) <= 0.02


def test_activations_hold_over_the_hold_outs() -> None:
    """Together: the first has two rows, of which one is unexplained."""
    assert mean(error for part in ("first", SECOND, THIRD, FIFTH) for error in pick("activations", part=part)) <= 0.035


@pytest.mark.parametrize(("part", "rows", "limit"), [(SECOND, 8, 0.009), (THIRD, 12, 0.008), (FIFTH, 8, 0.132)])
def test_later_hold_outs_are_reported_as_they_come_out(part: str, rows: int, limit: float) -> None:
    """No promise: the bounds are what docs/results/planner.md reports for today, so that the page stays true."""
    tokens = pick("KV tokens", "vllm", (0, 17), part=part)
    assert len(tokens) >= rows
    assert mean(tokens) <= limit
    assert mean(pick("activations", "vllm", (0, 10), part=part)) <= 0.02


def test_the_sixth_hold_out_as_it_came() -> None:
    """As it came, but for the graphs of experts from 0.28 on, which its one row of fused experts has in its peak."""
    tokens = pick("KV tokens", "vllm", (0, 17), part=SIXTH)
    assert len(tokens) >= 14
    assert mean(tokens) <= 0.006
    assert mean(pick("KV tokens", "vllm", until=(0, 17), part=SIXTH)) <= 0.04


def test_every_row_is_compared_or_has_a_reason() -> None:
    for item in (*results(MEASUREMENTS), *results(HOLDOUT)):
        assert not isinstance(item, Skipped) or item.reason


def test_no_row_is_left_out_for_what_the_planner_makes_of_it() -> None:
    reasons = {row.left_out for file in (MEASUREMENTS, HOLDOUT) for row in read_rows(file) if row.left_out}
    assert len(reasons) > 10
    assert not [reason for reason in reasons if re.search(r"exact|the plan is|% (over|under)", reason)]
