"""The planner knows what is installed: it takes what runs, and says what has to be installed for the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.detect.engines.checks import why_not_served
from qserve.detect.packages import Packages
from qserve.hub import resolve
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB

DESCRIBED = Hardware(parse_gpu("l40s"), 128 * GIB, 120 * GIB, 16)
BARE = frozenset({"torch", "transformers", "bitsandbytes"})


def plan_of(model: str, quant: str = "auto", packages: frozenset[str] | None = None) -> Plan:
    request = plan_request(engine="transformers", quant=quant)
    return make_plan(resolve(model), replace(DESCRIBED, packages=packages), request)


@pytest.mark.parametrize("packages", [None, BARE])
def test_4_bit_on_transformers_takes_what_the_set_up_installs(packages: frozenset[str] | None) -> None:
    plan = plan_of("Qwen/Qwen3-8B", "4bit", packages)
    assert (plan.quant.scheme, plan.quant.checkpoint, plan.quant.in_flight) == ("bnb-nf4", "Qwen/Qwen3-8B", True)
    assert any("awq checkpoint was passed over" in note and 'pip install "gptqmodel' in note for note in plan.notes)


def test_a_calibrated_checkpoint_is_taken_where_its_kernels_are_installed() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "4bit", BARE | {"gptqmodel"})
    assert (plan.quant.scheme, plan.quant.checkpoint) == ("awq", "Qwen/Qwen3-8B-AWQ")


def test_auto_takes_fp8_only_where_the_engine_has_kernels_for_it() -> None:
    """32 GB of fp8 were downloaded, and the first forward failed for want of a package."""
    assert plan_of("Qwen/Qwen3-32B").quant.scheme == "bnb-int8"
    assert plan_of("Qwen/Qwen3-32B", packages=BARE | {"kernels"}).quant.scheme == "fp8"


def test_what_is_named_is_planned_with_what_it_needs() -> None:
    awq = plan_of("Qwen/Qwen3-8B", "awq")
    assert awq.quant.scheme == "awq"
    assert any("awq on the transformers engine needs more than the set-up installs" in note for note in awq.notes)
    assert "gptqmodel" in str(why_not_served(awq, Packages(dict.fromkeys(BARE, "1"))))
    assert why_not_served(awq, Packages(dict.fromkeys(BARE | {"gptqmodel"}, "1"))) is None


def test_stored_fp8_without_kernels_is_counted_as_it_is_held() -> None:
    held, plain = plan_of("Qwen/Qwen3-8B-FP8"), plan_of("Qwen/Qwen3-8B", "bf16")
    assert held.devices[0].weights_bytes == pytest.approx(plain.devices[0].weights_bytes, rel=0.001)
    assert any("16 bit while loading" in note for note in held.notes)
    with_kernels = plan_of("Qwen/Qwen3-8B-FP8", packages=BARE | {"kernels"})
    assert with_kernels.devices[0].weights_bytes < 0.6 * plain.devices[0].weights_bytes
