"""What `qserve up` says of its choices before anything starts: engine, weights, and what the plan noted."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qserve.cli.up.cluster import checkpoint_names
from qserve.cli.up.hosting import hosted_models
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import CpuFeatures
from qserve.demo import reward_model_path
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.hub import resolve
from qserve.hub.growth import Arrived
from qserve.planner import PlanRequest, make_plan, plan_request
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import plan_service
from qserve.service.request import RewardRequest, ServiceRequest
from qserve.supervisor import ModelDeployment
from qserve.supervisor.screen import Screen
from qserve.terminal.service import service_text
from qserve.ui.views.plan import plan_view
from qserve.units import GIB
from tests.tiny.hub.loopback import COMMIT, loopback_hub


def hosted_of(request: ServiceRequest, folder: Path, out: io.StringIO | None = None) -> list[ModelDeployment]:
    """What a service of this machine's CPU hosts; what is printed goes to `out`."""
    screen = Screen(Console(file=out or io.StringIO(), soft_wrap=True, highlight=False))
    service = plan_service(request, Machine.named("none", serves=True), Knowledge(), folder)
    return hosted_models(service, folder, screen)


def said(tmp_path: Path, model: str = "demo", **fixed: Any) -> list[str]:
    out = io.StringIO()
    request = ServiceRequest(model, plan_request(engine="transformers", **fixed), load_format="dummy")
    hosted_of(request, tmp_path, out)
    return out.getvalue().splitlines()


@pytest.mark.parametrize(("quant", "scheme"), [("auto", "bf16"), ("4bit", "bnb-nf4"), ("int8", "bnb-int8")])
def test_each_quantization_is_explained(tmp_path: Path, quant: str, scheme: str) -> None:
    request = PlanRequest(engine="transformers", quant=quant)
    plan = make_plan(resolve("demo"), hardware_of("none"), request)
    assert plan.quant.scheme == scheme
    shown = " ".join(" ".join(said(tmp_path, quant=quant)).split())  # long lines are broken between words
    assert f"weights: {scheme} ({plan.quant.reason})" in shown


@pytest.mark.parametrize(("asked", "done"), [("auto", "int8"), ("exact", "exact")])
def test_chat_and_reward_round_activations_as_one_flag_says(
    tmp_path: Path, asked: str, done: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = frozenset({"avx512_bf16", "avx512_vnni", "avx512vbmi"})
    machine = replace(hardware_of("none"), cpu=CpuFeatures("", flags))
    monkeypatch.setattr("qserve.service.machine.hardware_of", lambda gpu: machine)
    out = io.StringIO()
    plan = plan_request(engine="transformers", quant="4bit", cpu_activations=asked)
    reward = RewardRequest("demo", quant="int8")
    deployments = hosted_of(ServiceRequest("demo", plan, reward, load_format="dummy"), tmp_path, out)
    assert {one.role: one.plan.cpu_activations for one in deployments} == {"chat": done, "reward": done}
    assert ("activations: rounded to 8 bits" in out.getvalue()) == (done == "int8")


def test_what_the_plan_noted_is_said_once(tmp_path: Path) -> None:
    lines = said(tmp_path, "Qwen/Qwen3-0.6B", quant="4bit", max_model_len=512)
    assert len([line for line in lines if "bundled dimensions" in line]) == 1
    assert any(line.startswith("weights: ") for line in lines)


def test_a_name_given_twice_is_one_name(tmp_path: Path) -> None:
    request = ServiceRequest("demo", PlanRequest(engine="transformers"), names=("a", "b", "a"), load_format="dummy")
    (chat,) = hosted_of(request, tmp_path)
    assert chat.names == ("a", "b")


def test_a_folder_without_weights_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((Path(resolve("demo").folder or "") / "config.json").read_bytes())
    with pytest.raises(BrokenCheckpoint, match=r"has no weights.*--load-format dummy"):
        hosted_of(ServiceRequest(str(tmp_path), PlanRequest(engine="transformers")), tmp_path)


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "", "  ", "\u202egnp.exe"])
def test_a_name_that_a_terminal_would_obey_is_refused(name: str) -> None:
    plan = make_plan(resolve("demo"), hardware_of("none"), PlanRequest())
    with pytest.raises(UsageError, match="--served-model-name") as refused:
        ModelDeployment("chat", Path(), ("demo", name), plan)
    assert "\x1b" not in str(refused.value)


def test_a_first_start_says_how_far_the_download_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fetched(checkpoint: Checkpoint, progress: Callable[[Arrived], None]) -> Checkpoint:
        progress(Arrived(2 * GIB, 3 * GIB, "3 s left"))
        (tmp_path / "model.safetensors").touch()
        return replace(checkpoint, folder=tmp_path)

    monkeypatch.setattr("qserve.hub.download.download", fetched)
    out = io.StringIO()
    screen = Screen(Console(file=out, soft_wrap=True, highlight=False))
    for engine in ("transformers", "vllm"):
        request = ServiceRequest("Qwen/Qwen3-0.6B", plan_request(engine=engine))
        service = plan_service(request, Machine(hardware_of("none")), Knowledge(), tmp_path)
        (chat,) = hosted_models(service, tmp_path, screen)
        assert chat.folder == tmp_path
    screen.end_progress()
    begun = out.getvalue().count("s  fetching Qwen/Qwen3-0.6B from the hub\n")
    assert begun == out.getvalue().count("s  fetching Qwen/Qwen3-0.6B: 2.00 GiB of 3.00 GiB · 3 s left\n") == 2


def test_a_reward_model_that_was_planned_by_its_headers_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {file.name: file.read_bytes() for file in reward_model_path().iterdir() if file.is_file()}
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    snapshots = tmp_path / "models--me--rm" / "snapshots"

    def fetch(name: str, revision: str | None, _: Callable[[Arrived], None]) -> Path:
        snapshots.mkdir(parents=True)
        (snapshots / str(revision)).symlink_to(reward_model_path())
        return snapshots / str(revision)

    monkeypatch.setattr("qserve.hub.download.fetch", fetch)
    with loopback_hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        request = ServiceRequest(None, PlanRequest(), RewardRequest(f"me/rm@{COMMIT}"))
        (reward,) = hosted_of(request, tmp_path)
    assert (reward.folder, reward.tokenizer) == (snapshots / COMMIT, snapshots / COMMIT)
    assert reward.plan.model.revision == COMMIT


def test_what_was_planned_from_a_table_is_recorded_at_the_commit_that_was_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the record, and nodes of a cluster, name the files that are served."""
    commit = "c" * 40
    folder = tmp_path / "hub" / "models--Qwen--Qwen3-0.6B" / "snapshots" / commit
    folder.mkdir(parents=True)
    (folder / "model.safetensors").touch()
    asked: list[str | None] = []

    def download(checkpoint: Checkpoint, _: Callable[[Arrived], None]) -> Checkpoint:
        asked.append(checkpoint.revision)
        return replace(checkpoint, folder=folder)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("qserve.hub.download.download", download)
    (chat,) = hosted_of(ServiceRequest("Qwen/Qwen3-0.6B", PlanRequest(engine="transformers")), tmp_path)
    assert asked == [None] and chat.plan.to_json()["model"]["revision"] == commit
    assert checkpoint_names([chat]) == {"chat": f"Qwen/Qwen3-0.6B@{commit}"}
    assert checkpoint_names([replace(chat, folder=tmp_path)]) == {"chat": "Qwen/Qwen3-0.6B"}


def test_a_sibling_in_the_place_of_a_pinned_model_is_told() -> None:
    read = replace(resolve("Qwen/Qwen3-32B"), revision="d" * 40)
    pinned = replace(read, asked="Qwen/Qwen3-32B@v1")
    machine = hardware_of("rtx-4090")
    sibling, itself = (make_plan(pinned, machine, plan_request(quant=quant)) for quant in ("awq", "bf16"))
    told = [note for note in sibling.notes if "main revision" in note]
    assert sibling.quant.checkpoint == "Qwen/Qwen3-32B-AWQ"
    assert told == [
        f"Qwen/Qwen3-32B-AWQ is loaded at its main revision; {'d' * 40} is one of Qwen/Qwen3-32B. To pin the files "
        "that are loaded, name Qwen/Qwen3-32B-AWQ itself with its --revision"
    ]
    assert not any("main revision" in note for note in itself.notes)
    unpinned = make_plan(read, machine, plan_request(quant="awq"))
    assert unpinned.quant.checkpoint == "Qwen/Qwen3-32B-AWQ"
    assert not any("main revision" in note for note in unpinned.notes), "nobody asked for one"
    assert "revision d" not in service_text([sibling], "") and "revision d" in service_text([itself], "")
    assert ">revision<" not in plan_view(sibling.to_json(), "en") and "d" * 12 in plan_view(itself.to_json(), "en")
