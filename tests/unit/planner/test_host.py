"""What the service holds beside its models is planned: printed, in the JSON, and taken from the models' RAM."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner
from rich.console import Console

from qserve.cli.plan.command import command
from qserve.core.hardware import Hardware, parse_gpu
from qserve.engines.transformers.plan.constants import TORCH_WITH_CUDA
from qserve.hub import resolve
from qserve.planner import Plan, make_plan
from qserve.planner.memory.host import GATEWAY, LARGE_BODIES, RAY_DRIVER, WEB_UI, with_host
from qserve.planner.request import PlanRequest
from qserve.service.replicas import share_out
from qserve.service.reward import as_scorer
from qserve.service.sharing import make_shared_plan
from qserve.terminal.plan import show_plan
from qserve.units import GIB

MACHINE = Hardware((), 16 * GIB, 12 * GIB, 4)
ASKED = PlanRequest(engine="transformers", max_model_len=512)


def plan_on(machine: Hardware) -> Plan:
    return make_plan(resolve("demo"), machine, ASKED)


def test_models_on_a_cpu_have_that_much_less() -> None:
    (bare,), (beside,) = plan_on(MACHINE).devices, plan_on(with_host(MACHINE)).devices
    all_of_it = GATEWAY.num_bytes + LARGE_BODIES.num_bytes + WEB_UI.num_bytes
    assert beside.used_by_others_bytes - bare.used_by_others_bytes == all_of_it
    (without_ui,) = plan_on(with_host(MACHINE, has_ui=False)).devices
    assert beside.used_by_others_bytes - without_ui.used_by_others_bytes == WEB_UI.num_bytes


def test_a_driver_of_a_cluster_holds_ray_as_well() -> None:
    (gateway, *others), (with_ray, *same) = with_host(MACHINE).host, with_host(MACHINE, is_driver=True).host
    assert with_ray.name == gateway.name and others == same, "it is the same process"
    assert with_ray.num_bytes - gateway.num_bytes == RAY_DRIVER.num_bytes
    assert gateway.source in with_ray.source and RAY_DRIVER.source in with_ray.source


def test_two_models_on_one_cpu_have_it_beside_them_once() -> None:
    both = [
        make_shared_plan(resolve("demo"), as_scorer(resolve("demo")), machine, ASKED, PlanRequest()).chat.devices[0]
        for machine in (MACHINE, with_host(MACHINE))
    ]
    all_of_it = GATEWAY.num_bytes + LARGE_BODIES.num_bytes + WEB_UI.num_bytes
    assert both[1].used_by_others_bytes - both[0].used_by_others_bytes == all_of_it


def test_replicas_on_one_cpu_have_it_beside_them_once() -> None:
    parts = share_out(with_host(MACHINE), 3, 0)
    assert sum(part.ram_for_models_bytes for part in parts) == pytest.approx(
        with_host(MACHINE).ram_for_models_bytes, abs=3
    )
    assert plan_on(parts[0]).host == with_host(MACHINE).host


def test_a_card_loses_nothing() -> None:
    card = replace(MACHINE, devices=parse_gpu("rtx-4090"))
    assert plan_on(with_host(card)).devices == plan_on(card).devices


def test_each_is_in_the_json_and_on_the_screen_with_its_source() -> None:
    plan = plan_on(with_host(MACHINE))
    document = plan.to_json()
    assert [one["name"] for one in document["host"]] == ["gateway", "large requests", "web UI"]
    assert Plan.from_json(document) == plan
    assert "host" not in plan_on(MACHINE).to_json()
    console = Console(width=500)
    with console.capture() as shown:
        show_plan(plan, explain=True, console=console)
    assert "Also in RAM: gateway 70 MiB" in shown.get()
    assert all(one.source in shown.get() for one in plan.host)


def test_the_command_plans_them() -> None:
    result = CliRunner().invoke(command, ["--model", "demo", "--gpu", "none", "--engine", "transformers"])
    assert result.exit_code == 0 and "Also in RAM: gateway" in result.output


def test_a_torch_for_cards_holds_more_on_a_machine_without_one() -> None:
    (bare,), (with_cuda,) = plan_on(MACHINE).devices, plan_on(replace(MACHINE, torch_has_cuda=True)).devices
    assert with_cuda.runtime_bytes - bare.runtime_bytes == TORCH_WITH_CUDA.num_bytes
    (term,) = [term for term in with_cuda.terms if term.name == "runtime"]
    assert "CUDA's among them" in term.formula and term.low_bytes < term.num_bytes < term.high_bytes
    card = replace(MACHINE, devices=parse_gpu("rtx-4090"))
    assert plan_on(replace(card, torch_has_cuda=True)).devices == plan_on(card).devices
