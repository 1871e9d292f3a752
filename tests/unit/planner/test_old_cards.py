"""Cards that the published wheels have no kernels for: no plan says that they fit, described or found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.hardware import Hardware
from qserve.core.wheels import least_of_torch
from qserve.detect.engine_checks import engine_checks
from qserve.detect.packages import Packages
from qserve.errors import UsageError
from qserve.hub.resolve import resolve
from qserve.planner import make_plan
from qserve.planner.engine import plan_request
from tests.unit.planner.test_make_plan import machine

MODEL = "Qwen/Qwen2.5-0.5B"


def hardware(capability: tuple[int, int]) -> Hardware:
    described = machine("rtx-4090")
    card = replace(described.devices[0], name="an old card", compute_capability=capability)
    return replace(described, devices=(card,))


@pytest.mark.parametrize("capability", [(7, 0), (7, 2), (6, 1), (6, 0), (5, 2)])
def test_vllm_is_not_planned_on_a_card_without_kernels(capability: tuple[int, int]) -> None:
    with pytest.raises(UsageError, match=rf"capability {capability[0]}\.{capability[1]}, .*vLLM 0\.32\.0.*from 7\.5"):
        make_plan(resolve(MODEL), hardware(capability), plan_request(engine="vllm"))


@pytest.mark.parametrize("capability", [(7, 0), (6, 1), (5, 2)])
def test_without_a_named_engine_the_other_one_is_planned_with_a_note(capability: tuple[int, int]) -> None:
    plan = make_plan(resolve(MODEL), hardware(capability), plan_request())
    assert plan.engine == "transformers"
    assert any("compute capability" in note and "CUDA 12.6" in note for note in plan.notes)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 9), (9, 0), (12, 0)])
def test_a_card_with_kernels_is_planned_as_before(capability: tuple[int, int]) -> None:
    plan = make_plan(resolve(MODEL), hardware(capability), plan_request())
    assert plan.engine == "vllm"
    assert not any("hold kernels" in note for note in plan.notes)


def test_an_older_release_had_kernels_for_volta() -> None:
    assert make_plan(resolve(MODEL), hardware((7, 0)), plan_request(engine_version="0.19.0")).engine == "vllm"
    with pytest.raises(UsageError, match=r"from 7\.0 on"):
        make_plan(resolve(MODEL), hardware((6, 1)), plan_request(engine="vllm", engine_version="0.19.0"))


def test_a_card_that_no_wheel_of_torch_knows() -> None:
    with pytest.raises(UsageError, match=r"capability 3\.7, and no wheel of torch"):
        make_plan(resolve(MODEL), hardware((3, 7)), plan_request())


@pytest.mark.parametrize(("capability", "quant"), [((7, 0), "bnb-int8"), ((5, 2), "bnb-nf4")])
def test_bitsandbytes_has_no_kernels_either(capability: tuple[int, int], quant: str) -> None:
    with pytest.raises(UsageError):
        make_plan(resolve(MODEL), hardware(capability), plan_request(engine="transformers", quant=quant))
    assert make_plan(resolve(MODEL), hardware((7, 5)), plan_request(engine="transformers", quant=quant)).fits


@pytest.mark.parametrize(
    ("torch", "least"),
    [("2.13.0", (7, 5)), ("2.13.0+cu130", (7, 5)), ("2.13.0+cu126", (5, 0)), ("2.10.0+cu128", (7, 0))],
)
def test_what_is_installed_is_judged_by_its_build(torch: str, least: tuple[int, int]) -> None:
    """`qserve doctor` and `qserve up` ask this of the cards that are there."""
    assert least_of_torch(torch) == least
    packages = Packages({"torch": torch, "transformers": "5.19.0", "accelerate": "1.0", "vllm": "0.32.0"})
    for capability in ((7, 5), (7, 0), (6, 1), (5, 2)):
        found = hardware(capability)
        reason = engine_checks("transformers").why_not_installed(found, packages)
        assert (reason is None) == (capability >= least), reason
        assert (engine_checks("vllm").why_not_installed(found, packages) is None) == (capability >= (7, 5))
