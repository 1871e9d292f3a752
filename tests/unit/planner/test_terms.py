"""The terms of a plan are its figures: every column is their sum, and with what is free they are the whole device."""

from __future__ import annotations

import ast

import pytest

from qserve.engines.transformers.plan.terms import CPU_TERMS as TRANSFORMERS_TERMS
from qserve.engines.vllm.plan.terms import CARD_TERMS, CPU_TERMS
from qserve.planner.engine import engine_named
from qserve.planner.plan import Plan
from qserve.planner.term import COLUMNS, columns_of
from qserve.units import format_bytes
from tests.golden.plans.answers import kept
from tests.house.sources import PACKAGE, tree_of


@pytest.fixture(scope="module")
def plans() -> dict[str, Plan]:
    """The kept ones by their command lines: tests/golden holds that they are today's."""
    answers = {line: answer["plan"] for line, answer in kept().items()}
    return {line: Plan.from_json(plan) for line, plan in answers.items() if plan and "quant" in plan}


def test_there_are_plans_of_every_engine_and_kind(plans: dict[str, Plan]) -> None:
    assert {plan.engine for plan in plans.values()} == {"vllm", "transformers"}
    kinds = {(plan.fits, plan.on_cpu) for plan in plans.values()}
    assert kinds >= {(True, False), (True, True), (False, False)}


def test_every_column_is_the_sum_of_its_terms_and_all_sum_to_the_device(plans: dict[str, Plan]) -> None:
    for line, plan in plans.items():
        for device in plan.devices:
            sums = columns_of(device.terms)
            assert {name: getattr(device, f"{name}_bytes") for name in COLUMNS} == sums, line
            held = sum(term.num_bytes for term in device.terms)
            assert held + device.free_bytes + device.used_by_others_bytes == device.total_bytes, line


def test_columns_are_named_in_one_place() -> None:
    """What shows them goes over `COLUMNS`; the engine's terms have names of their own, and Chinese is told by them."""
    own = {"planner/term.py", "engines/transformers/plan/terms.py", "ui/strings/sentences/formulas.py"}
    bars = "terminal/plan.py"  # a colour for each
    names = {COLUMNS["kv_cache"], COLUMNS["cuda_graphs"]}
    naming = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if names <= {node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)}
    }
    assert own <= naming <= own | {bars}


def test_what_is_charged_leaves_the_cache_of_the_engines_share(plans: dict[str, Plan]) -> None:
    """vLLM's own rule, term by term: share of the card less the charged terms is the cache of the tightest rank."""
    for line, plan in plans.items():
        share = plan.placement.gpu_memory_utilization
        if not share or "--kv-cache-memory-bytes" in line or not plan.fits:
            continue
        charged = [sum(term.num_bytes for term in device.terms if term.is_charged) for device in plan.devices]
        left = min(int(device.total_bytes * share) - held for device, held in zip(plan.devices, charged, strict=True))
        assert plan.placement.kv_cache_memory_bytes == max(0, left), line


def test_bands_hold_their_terms_and_every_term_is_one_that_the_engine_names(plans: dict[str, Plan]) -> None:
    for line, plan in plans.items():
        names = engine_named(plan.engine).planner.term_names
        for term in (term for device in plan.devices for term in device.terms):
            assert term.low_bytes <= term.num_bytes <= term.high_bytes, (line, term.name)
            assert term.name in names, line
            assert term.formula, line
            assert term.source, line


@pytest.mark.parametrize("kinds", [CARD_TERMS, CPU_TERMS, TRANSFORMERS_TERMS], ids=["card", "cpu", "transformers"])
def test_a_list_holds_every_kind_once(kinds: tuple[object, ...]) -> None:
    assert len({type(kind) for kind in kinds}) == len(kinds)


def test_what_is_missing_is_one_figure(plans: dict[str, Plan]) -> None:
    """`short_bytes`, what the fullest device lacks, and the sentence say the same; parts of the bar sum to it."""
    refused = {line: plan for line, plan in plans.items() if not plan.fits and "missing on" in (plan.why_not or "")}
    assert len(refused) >= 50
    assert {plan.engine for plan in refused.values()} == {"vllm", "transformers"}
    for line, plan in refused.items():
        assert plan.short_bytes == -min(device.free_bytes for device in plan.devices) > 0, line
        assert (plan.why_not or "").startswith(f"{format_bytes(plan.short_bytes)} missing on "), line


def test_no_other_refusal_shows_a_device_that_lacks_memory(plans: dict[str, Plan]) -> None:
    """A cache that the user made too small is told by its flag, and a map of modules by the place that it overfills."""
    for line, plan in plans.items():
        if not plan.fits and "missing on" not in (plan.why_not or ""):
            told = (plan.why_not or "").startswith(("--kv-cache-memory-bytes ", "the device map "))
            assert told, (line, plan.why_not)
