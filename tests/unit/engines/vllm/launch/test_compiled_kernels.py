"""What nvcc compiles is left out where it is not sure to be there, and the start's limit counts what it takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qserve.detect.cuda_toolkit import CudaToolkit
from qserve.engines.vllm.launch import compiled_kernels
from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.compiled_kernels import compile_limit_s, deep_gemm_cache, kernel_settings
from qserve.errors import UsageError
from tests.unit.engines.vllm.builders import plan_of, spec_of

HOME = Path("/usr/local/cuda")
WHOLE, NONE = CudaToolkit(HOME, True, True, True, (13, 0)), CudaToolkit(HOME, False, False, False, None)
SAMPLER, DEEP_GEMM = "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_DEEP_GEMM"
ON_CARD = plan_of("Qwen/Qwen3-8B", "h100-sxm", quant="bf16")
IN_FP8 = plan_of("Qwen/Qwen3-8B", "h100-sxm", quant="fp8_per_block")


def settings(environ: dict[str, str], tools: CudaToolkit = NONE) -> dict[str, str]:
    found = kernel_settings(ON_CARD, {"PATH": "/bin", **environ}, tools)
    return {name: value for name, value in found.items() if name != "PATH"}


def test_nothing_that_may_fail_to_compile_is_on_by_default() -> None:
    assert settings({}) == {SAMPLER: "0", DEEP_GEMM: "0"}
    assert settings({}, WHOLE) == {SAMPLER: "0"}
    assert kernel_settings(plan_of(quant="bf16"), {}, NONE) == {}, "there is no card"


def test_what_the_user_set_stays() -> None:
    assert settings({SAMPLER: "1", DEEP_GEMM: "1"}, WHOLE) == {}
    assert settings({SAMPLER: "0", DEEP_GEMM: "1"}) == {}


def test_a_sampler_that_can_not_be_compiled_is_refused_before_the_start() -> None:
    with pytest.raises(UsageError, match=f"{SAMPLER}=1 .* no nvcc, and no ninja here; .*CUDA_HOME.* unset {SAMPLER}"):
        settings({SAMPLER: "1"})


def test_compiled_kernels_of_the_same_release_leave_vllms_own_default(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"flashinfer-jit-cache": "0.7.1+cu130", "flashinfer-python": "0.7.1"}
    monkeypatch.setattr(compiled_kernels, "version", installed.__getitem__)
    assert settings({}) == {DEEP_GEMM: "0"}
    assert settings({SAMPLER: "1"}) == {DEEP_GEMM: "0"}
    installed["flashinfer-jit-cache"] = "0.7.0+cu130"
    assert settings({}) == {SAMPLER: "0", DEEP_GEMM: "0"}


def test_programs_of_this_environment_are_on_the_path_of_the_engine() -> None:
    path = kernel_settings(ON_CARD, {"PATH": "/bin"}, NONE)["PATH"].split(os.pathsep)
    assert path[0] == "/bin" and len(path) == 2


def test_only_a_first_start_has_time_to_compile(tmp_path: Path) -> None:
    kept = {"VLLM_CACHE_ROOT": str(tmp_path), SAMPLER: "0"}
    assert compile_limit_s(IN_FP8, kept) == 900
    assert compile_limit_s(ON_CARD, kept) == 0, "DeepGEMM multiplies FP8"
    assert compile_limit_s(IN_FP8, {**kept, DEEP_GEMM: "0"}) == 0
    assert compile_limit_s(ON_CARD, {"VLLM_CACHE_ROOT": str(tmp_path), SAMPLER: "1"}) == 900
    (tmp_path / "deep_gemm" / "cache" / "kernel.1").mkdir(parents=True)
    assert compile_limit_s(IN_FP8, kept) == 900, "an empty folder holds no kernel"
    (tmp_path / "deep_gemm" / "cache" / "kernel.1" / "kernel.cubin").touch()
    assert compile_limit_s(IN_FP8, kept) == 0
    assert compile_limit_s(plan_of(quant="bf16"), {}) == 0


def test_where_compiled_kernels_are_kept() -> None:
    assert deep_gemm_cache({"DG_JIT_CACHE_DIR": "/d", "VLLM_CACHE_ROOT": "/v"}) == Path("/d")
    assert deep_gemm_cache({"VLLM_CACHE_ROOT": "/v", "XDG_CACHE_HOME": "/x"}) == Path("/v/deep_gemm")
    assert deep_gemm_cache({"XDG_CACHE_HOME": "/x"}) == Path("/x/vllm/deep_gemm")


def test_the_command_has_the_settings_and_the_time(parser, tmp_path: Path) -> None:
    nowhere = {"PATH": "/bin", "CUDA_HOME": str(tmp_path), "VLLM_CACHE_ROOT": str(tmp_path)}
    env = command(spec_of(IN_FP8), parser, environ=nowhere).env
    assert (env[SAMPLER], env[DEEP_GEMM], env["VLLM_ENGINE_READY_TIMEOUT_S"]) == ("0", "0", "600")
    env = command(spec_of(IN_FP8), parser, environ={**nowhere, DEEP_GEMM: "1"}).env
    assert (env[SAMPLER], env[DEEP_GEMM], env["VLLM_ENGINE_READY_TIMEOUT_S"]) == ("0", "1", "1500")
