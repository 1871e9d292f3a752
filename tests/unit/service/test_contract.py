"""One settings file is one service: plan, up, deploy, the library, a node of a cluster and the UI plan it the same."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import qserve
from qserve.cli.main import cli
from qserve.cli.options import deployment
from qserve.cli.up.command import command as up_command
from qserve.cluster.planning import plan_node
from qserve.core.hardware import CpuFeatures, Hardware, parse_gpu
from qserve.detect.packages import Packages
from qserve.engines.vllm.plan.versions import TESTED_RELEASE
from qserve.reward.settings import FLAGS
from qserve.service.machine import Machine
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import SERVICE_OPTIONS, ServiceRequest, plan_options
from qserve.ui.client.planner import PlanQuestion
from qserve.units import GIB

PACKAGES = Packages(
    {**Packages.installed().versions, "vllm": TESTED_RELEASE, "vllm-bnb-plugin": "0.0.3", "bitsandbytes": "0.50.2"}
)
CPU = CpuFeatures("a CPU", frozenset({"avx512_bf16", "avx512_vnni"}))
MACHINE = Hardware((), 128 * GIB, 112 * GIB, 16, CPU, disk_free_bytes=500 * GIB, packages=frozenset(PACKAGES.versions))
DEFECT = {"model": "Qwen/Qwen3-8B", "reward": "demo", "gpu": "a100-80gb", "reward_quant": "4bit", "max_length": 512}
BUNDLED = deployment.bundled()


class Stop(Exception):
    """Far enough."""


@pytest.fixture(autouse=True)
def _one_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No network, nothing learned, all packages installed."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(Packages, "installed", classmethod(lambda cls: PACKAGES))
    monkeypatch.setattr("qserve.cli.up.checks.check_packages", lambda *_: None)
    monkeypatch.setattr("qserve.cli.up.command.check_packages", lambda *_: None)


@contextlib.contextmanager
def planned_by(place: str, monkeypatch: pytest.MonkeyPatch, plans: bool) -> Iterator[list[Any]]:
    """What `plan_service` is asked for and makes where `place` calls it; nothing follows it. Not `plans`: the request
    alone.
    """
    found: list[Any] = []

    def recorded(request: ServiceRequest, machine: Machine, knowledge: Any, folder: Path | None = None) -> ServicePlan:
        # On this machine there is no checkpoint but the demo's.
        serves = machine.serves and (request.reward is None or request.reward.checkpoint == "demo")
        machine = replace(machine, serves=serves)
        found.append(plan_service(request, machine, knowledge, folder) if plans else request)
        raise Stop

    with monkeypatch.context() as patched, contextlib.suppress(Stop):
        patched.setattr(f"{place}.plan_service", recorded)
        yield found


def of_command(words: list[str], place: str, monkeypatch: pytest.MonkeyPatch, plans: bool) -> Any:
    with planned_by(place, monkeypatch, plans) as found, contextlib.redirect_stderr(io.StringIO()):
        cli.main(words, standalone_mode=False)
    return found[0]


def here(gpu: str | None, monkeypatch: pytest.MonkeyPatch) -> Hardware:
    """This machine has the cards that `gpu` names."""
    devices = () if gpu in (None, "none") else parse_gpu(str(gpu))
    machine = replace(MACHINE, devices=devices)
    monkeypatch.setattr("qserve.detect.detect", lambda is_described=False: machine)
    return machine


def all_ways(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plans: bool = True) -> dict[str, Any]:
    """By way to plan: the service, or its request."""
    settings = deployment.load(str(file))
    hardware = here(settings.gpu, monkeypatch)
    found = {
        "plan": of_command(["plan", "--config", str(file)], "qserve.cli.plan.command", monkeypatch, plans),
        "up": of_command(["up", "--config", str(file)], "qserve.cli.up.plans", monkeypatch, plans),
    }
    if not set(settings.options) & set(NOT_DEPLOYED):
        words = ["deploy", "compose", "--config", str(file)]
        found["deploy"] = of_command(words, "qserve.cli.deploy", monkeypatch, plans)
    with planned_by("qserve.library.planning", monkeypatch, plans) as planned:
        qserve.plan(gpu=settings.gpu, **settings.options)
    found["library"] = planned[0]
    if plans and hardware.devices and settings.options.get("reward") in (None, "demo"):
        found["cluster"], _ = plan_node(ServiceRequest.from_flags(settings.options), hardware, 1, tmp_path)
    return found


NOT_DEPLOYED = ("ready_file", "ray", "admin_key_file")
"""Options that `deploy compose` refuses, each with what does instead."""


def of_models(service: ServicePlan) -> list[dict[str, Any]]:
    """What is compared: the plans of all servers. Where they run is said otherwise of a machine that is not here."""
    left_out = (
        "model",
        "quant",
        "notes",
        "host",
        "suggestions",
        "explanations",
        "corrections",
        "next_command",
        "machine",
    )
    return [
        {"scheme": one.plan.quant.scheme}
        | {name: value for name, value in one.plan.to_json().items() if name not in left_out}
        for model in service.models
        for one in model.replicas
    ]


def expect_one_plan(found: dict[str, Any]) -> None:
    first = of_models(found.pop("plan"))
    assert first
    for way, service in found.items():
        assert of_models(service) == first, way


@pytest.mark.parametrize("name", sorted(BUNDLED))
def test_a_bundled_deployment_is_planned_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_one_plan(all_ways(BUNDLED[name], monkeypatch, tmp_path))


def write(folder: Path, **settings: Any) -> Path:
    file = folder / "service.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"reward_replicas": 2, "gpu": "a100-80gb:4"},
        {"replicas": 2, "gpu": "a100-80gb:4"},
        {"gpu": "none", "model": "demo", "cpu_activations": "exact", "gateway_processes": 4, "ui": False},
        {"reward_engine": "transformers", "base": None},
    ],
)
def test_a_reward_model_is_planned_as_it_was_asked_for(
    more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: value for name, value in {**DEFECT, **more}.items() if value is not None}
    found = all_ways(write(tmp_path, **settings), monkeypatch, tmp_path)
    reward = found["plan"].reward
    assert (reward.whole.quant.scheme, reward.whole.workload.max_model_len) == ("bnb-nf4", 512)
    expect_one_plan(found)


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "Qwen/Qwen3-8B", "gpu": "h100:4", "replicas": 2},
        {"model": "Qwen/Qwen3-8B", "gpu": "h100:4", "replicas": "auto"},
        {"model": "Qwen/Qwen3-8B", "gpu": "h100:2", "users": 20, "ttft": "2s"},
        {"model": "Qwen/Qwen3-30B-A3B", "gpu": "h100:2", "engine": "vllm", "data_parallel_size": 2},
        {"model": "Qwen/Qwen3-8B", "gpu": "rtx-4090:2", "engine_args": "--enable-lora --max-lora-rank 64"},
        {"reward": "demo", "gpu": "rtx-4090", "max_length": 512},
        {"reward": "demo", "judge": "pairwise", "gpu": "none"},
        {"model": "Qwen/Qwen3-0.6B", "gpu": "none", "replicas": 2},
    ],
)
def test_services_of_other_kinds_are_planned_once(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_one_plan(all_ways(write(tmp_path, **settings), monkeypatch, tmp_path))


NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"reward": "demo"} for name in SERVICE_OPTIONS if name in FLAGS or "reward_" in name},
    **{one.name: {"enable_lora": True} for one in plan_options() if "lora" in one.name},
    **{name: {"concurrency": 2} for name in ("num_prompts", "prefix_share")},
    "reward_revision": {"reward": "me/judge"},
    **{name: {"embed": "Qwen/Qwen3-Embedding-0.6B"} for name in SERVICE_OPTIONS if "embed_" in name},
    "position": {"reward": "demo", "pooling": "position"},
    "think_time": {"users": 2},
    "judge": {"model": "demo", "reward": "demo", "engine": "transformers", "gpu": "none"},
}
"""Settings without which a key is refused."""
NOT_IN_FILES = (
    "api_key",
    "api_key_file",
    "admin_key_file",
    "gpu",
    "ray",
    "ray_nodes",
    "ray_ports",
    "scale_down_after",
    "min_replicas",
    "max_replicas",
)
"""Keys, the machine, and a cluster that has to be there."""


def options() -> dict[str, click.Option]:
    """Every key of a settings file that `up` takes."""
    taken = {one.name for one in up_command.params} - set(NOT_IN_FILES)
    found = {name: one for name, one in deployment._options().items() if name in taken}
    return {name: one for name, one in found.items() if isinstance(one, click.Option)}


def value_of(option: click.Option, folder: Path) -> Any:
    """A value that is not the default, in the spelling of a file."""
    special: dict[str, Any] = {
        "model": "Qwen/Qwen3-4B",
        "reward": "demo",
        "engine": "vllm",
        "replicas": 2,
        "ray": "auto",
        "quant": "fp8",
        "dtype": "float16",
        "engine_args": "--enable-lora",
        "judge": "pairwise",
        "pooling": "mean",
        "kv_cache_dtype": "fp8",
        "hf_overrides": '{"max_position_embeddings": 32768}',
        "ttft": "2s",
        "tpot": "50ms",
        "engine_version": TESTED_RELEASE,
        "host": "127.0.0.2",
        "prefix_share": 0.5,
        "position": 2,
        "ray_ports": "1-9",
        "otlp_traces_endpoint": "http://127.0.0.1:4318/v1/traces",
        "cors_origin": ["http://127.0.0.1:3000"],
        "offload": "cpu",
        "weights": "a=1",
        "answer_tokens": "yes,no",
        "reward_quant": "4bit",
        "truncate": "left",
        "gpu_memory_utilization": 0.5,
        "load_format": "dummy",
        "log_level": "info",
        "log_format": "json",
        "cpu_activations": "exact",
        "max_lora_rank": 64,
        "device_map": "balanced",
        "max_memory": "0=20GiB",
        "start_timeout": 9,
        "limit_mm_per_prompt": '{"image": 4}',
        "mm_processor_kwargs": '{"max_pixels": 1003520}',
        "mamba_ssm_cache_dtype": "float32",
        "engram_config": '{"cpu_offload": false}',
    }
    name = str(option.name)
    if name in special:
        return special[name]
    if option.is_flag:
        return name != "ui"
    if isinstance(option.type, click.Path):
        file = folder / name
        if name == "keys":
            file.write_text(f"keys: [{{name: a, sha256: {'a' * 64}}}]\n")
        if not option.type.exists or name == "state_dir":
            return str(file)
        file.write_text(
            {"trace": '{"arrival": 0, "input": 9, "output": 9}\n', "prices": "[cards]\nrtx-4090 = 0.3\n"}.get(
                name, "{{ messages }}"
            )
        )
        return str(file)
    if isinstance(option.type, click.Choice):
        return next(one for one in option.type.choices if one != option.default)
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        return 3 if isinstance(option.type, click.IntRange) else 0.7
    return {"size": "6GiB"}.get(option.type.name, "x")


@pytest.mark.parametrize("name", sorted(options()))
def test_no_key_of_a_file_is_dropped(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to plan reads the same request from it; a key that plans depend on changes that."""
    base: dict[str, Any] = {"model": "Qwen/Qwen3-8B", "gpu": "h100:4", "engine": "vllm"}
    option = options()[name]
    base |= NEEDED.get(name, {})
    value = value_of(option, tmp_path)
    file = write(tmp_path, **{**base, name: value})
    found = all_ways(file, monkeypatch, tmp_path, plans=False)
    assert {way for way, request in found.items() if request != found["plan"]} == set()
    planned = {*SERVICE_OPTIONS, *(one.name for one in plan_options())}
    without = {key: setting for key, setting in base.items() if key != name}
    before = ServiceRequest.from_flags(deployment.load(str(write(tmp_path, **without))).options)
    assert (found["plan"] != before) == (name in planned), "the plan depends on it"


def test_the_form_asks_for_the_commands_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """The UI's form runs `qserve plan` with these words."""
    here("a100-80gb", monkeypatch)
    command = "qserve plan --model Qwen/Qwen3-8B --gpu a100-80gb --reward demo --reward-quant 4bit --max-length 512"
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(["plan", *PlanQuestion.from_command(command).plan_flags(), "--json"], standalone_mode=False)
    reward = json.loads(out.getvalue())["reward"]
    assert (reward["quant"]["scheme"], reward["workload"]["max_model_len"]) == ("bnb-nf4", 512)
