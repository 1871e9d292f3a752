"""A machine whose cards no engine of qserve runs on: planned without a command that serves, refused where it serves."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import click
import pytest

from qserve.cli.main import cli
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.schemes import SCHEMES
from qserve.detect.packages import Packages
from qserve.errors import UsageError
from qserve.planner.engine import PLAN_ONLY
from qserve.planner.siblings import sibling_of
from qserve.service.knowledge import Knowledge
from qserve.service.layout.fitting_plans import compared
from qserve.service.machine import Machine
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest
from qserve.units import GIB

HERE = Hardware(parse_gpu("b60"), 64 * GIB, 60 * GIB, 16, packages=frozenset({"torch"}))
CPU_PACKAGES = Packages({"torch": "2.13.0+cpu", "transformers": "5.19.0", "accelerate": "1.15.0"})


def planned(tmp_path: Path, *, serves: bool = False, hardware: Hardware = HERE, **options: object) -> ServicePlan:
    machine = Machine(hardware, CPU_PACKAGES, is_here=True, serves=serves)
    known = Knowledge.of(machine, tmp_path, is_off=True, warn=lambda _: None)
    return plan_service(ServiceRequest.from_flags({"model": "demo", **options}), machine, known)


def test_up_refuses_in_one_sentence_with_what_to_use_instead(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        planned(tmp_path, serves=True)
    told = str(raised.value)
    assert told == (
        "no engine of qserve runs on Intel Arc Pro B60, where vLLM's XPU build or llama.cpp would serve the model; "
        "`qserve plan` says what fits there, and --gpu none serves on the CPU"
    )


def test_it_is_planned_there_and_served_on_the_cpu(tmp_path: Path) -> None:
    (model,) = planned(tmp_path).models
    assert (model.whole.engine, model.whole.on_cpu) == (PLAN_ONLY, False)
    (on_cpu,) = planned(tmp_path, serves=True, hardware=replace(HERE, devices=())).models
    assert on_cpu.whole.on_cpu


def test_a_load_and_replicas_are_planned_for_it(tmp_path: Path) -> None:
    four = replace(HERE, devices=parse_gpu("b60:4"))
    (loaded,) = planned(tmp_path, hardware=four, model="Qwen/Qwen3-8B", users=20).models
    assert loaded.whole.speed is not None
    assert loaded.whole.speed["load"]["users"] == 20
    assert loaded.whole.speed["alternatives"]
    (copies,) = planned(tmp_path, hardware=four, model="Qwen/Qwen3-8B", replicas=2).models
    assert len(copies.replicas) == 2


@pytest.mark.parametrize("gpu", ["b60", "910b", "310p", "m4-max-64gb", "m1-16gb"])
def test_layouts_and_changes_are_of_the_quantizations_that_the_cards_row_names(gpu: str, tmp_path: Path) -> None:
    card = replace(HERE, devices=parse_gpu(gpu))
    under = {scheme for scheme in card.devices[0].schemes if SCHEMES[scheme].bits < 16}
    assert set(compared(card)) == under
    (loaded,) = planned(tmp_path, hardware=card, model="Qwen/Qwen3-4B", concurrency=2).models
    assert loaded.whole.speed is not None
    made = {scheme for scheme in under if sibling_of("Qwen/Qwen3-4B", scheme) or not SCHEMES[scheme].is_stored}
    assert under & {row["quant"] for row in loaded.whole.speed["alternatives"]} == made
    notes = [note for note in loaded.whole.notes if note.startswith("No layout in 4 bit")]
    assert bool(notes) == all(SCHEMES[scheme].bits != 4 for scheme in made)
    assert all("--quant 4bit says why" in note for note in notes)


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name.startswith("mlx-")])
def test_a_scheme_that_a_plan_names_is_taken_by_its_name(scheme: str, tmp_path: Path) -> None:
    chip = replace(HERE, devices=parse_gpu("m4-max-64gb"))
    (named,) = planned(tmp_path, hardware=chip, model="Qwen/Qwen3-4B", quant=scheme).models
    assert named.whole.quant.scheme == scheme
    with pytest.raises(UsageError, match=f"--quant {scheme} of Qwen/Qwen3-4B does not run on"):
        planned(tmp_path, hardware=replace(HERE, devices=parse_gpu("l40s")), model="Qwen/Qwen3-4B", quant=scheme)


def run(*words: str) -> tuple[str, str]:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            cli.main(args=list(words), standalone_mode=False)
        except (click.ClickException, UsageError) as problem:
            error.write(str(problem))
        except SystemExit:
            pass
    return out.getvalue(), error.getvalue()


def test_a_plan_names_no_command_that_serves_it() -> None:
    out, _ = run("plan", "Qwen/Qwen3-8B", "--gpu", "m4-max-64gb", "--json")
    document = json.loads(out)
    assert document["fits"] is True
    assert document["engine"] == PLAN_ONLY
    assert "next_command" not in document
    assert "host" not in document  # no gateway of ours would be there
    shown, _ = run("plan", "Qwen/Qwen3-8B", "--gpu", "m4-max-64gb")
    assert "qserve up" not in shown
    assert "Plan only: no engine of qserve runs on Apple M4 Max 64 GB" in " ".join(shown.split())


@pytest.mark.parametrize("target", ["compose", "k8s", "systemd", "kuberay"])
def test_nothing_is_deployed_there(target: str) -> None:
    out, error = run("deploy", target, "Qwen/Qwen3-8B", "--gpu", "910b")
    assert out == ""
    assert "no engine of qserve runs on Ascend 910B, where vllm-ascend would serve the model" in error


@pytest.mark.parametrize("devices", ["rtx-4090", ""])
def test_a_training_plan_says_what_is_odd_of_this_machine(monkeypatch: pytest.MonkeyPatch, devices: str) -> None:
    odd = "xpu-smi names a card that is not counted"
    here = replace(HERE, devices=parse_gpu(devices) if devices else (), notes=(odd,))
    monkeypatch.setattr("qserve.cli.plan.train.hardware_of", lambda _: here)
    out, error = run("plan", "train", "Qwen/Qwen3-0.6B", "--method", "lora")
    assert odd in " ".join(f"{out} {error}".split())
    assert bool(out) == bool(devices)


@pytest.mark.parametrize("gpu", ["b60", "m4-max-64gb", "310p"])
def test_a_length_that_the_model_lacks_is_refused_without_an_engines_name(gpu: str) -> None:
    _, error = run("plan", "Qwen/Qwen3-8B", "--gpu", gpu, "--max-model-len", "10000000")
    assert "Qwen/Qwen3-8B has 40960 positions; give that or less" in error
    assert PLAN_ONLY not in error


def test_training_is_not_planned_there() -> None:
    out, error = run("plan", "train", "Qwen/Qwen3-8B", "--method", "lora", "--gpu", "b60")
    assert out == ""
    assert "training is not planned on Intel Arc Pro B60" in error


def test_a_reward_model_is_refused_with_what_is_planned() -> None:
    _, error = run("plan", "--reward", "Skywork/Skywork-Reward-V2-Qwen3-0.6B", "--gpu", "b60")
    assert "no engine of qserve runs on Intel Arc Pro B60" in error
    assert "chat models are planned for it" in error
