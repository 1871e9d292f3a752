"""Kernels that vLLM has compiled by nvcc when it starts: which are left on, and how long that may take.

vLLM takes FlashInfer's sampler by default (0.8.5 to 0.10, and again from 0.21 on), and DeepGEMM for blocks of FP8 from
Hopper on. Both are compiled at the first start, and where that fails the start ends (vllm#49497, vllm#50705,
vllm#41849). What is not sure to be there is left out; vLLM then samples by Triton and multiplies by CUTLASS.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from qserve.detect.cuda_toolkit import CudaToolkit, cuda_toolkit, with_ninja
from qserve.errors import UsageError
from qserve.planner.plan import Plan

__all__ = ["compile_limit_s", "deep_gemm_cache", "kernel_settings", "sampler_is_precompiled"]

_SAMPLER, _DEEP_GEMM = "VLLM_USE_FLASHINFER_SAMPLER", "VLLM_USE_DEEP_GEMM"
_PATH = "PATH"
# Qwen3-30B-A3B-FP8 on an H100: 94 s for 41 kernels (vllm#48190), 131 s (vllm#22215); a slow processor takes longer.
_LIMIT_S = 900


def kernel_settings(plan: Plan, inherited: Mapping[str, str], tools: CudaToolkit | None = None) -> dict[str, str]:
    """Variables for the engine; what the user set stays.

    Raises UsageError where the environment asks for a sampler that can't be compiled here.
    """
    if plan.on_cpu:
        return {}
    found = tools or cuda_toolkit(inherited)
    precompiled = sampler_is_precompiled()
    _check_sampler(inherited.get(_SAMPLER), found, precompiled)
    settings = {_PATH: with_ninja(inherited.get(_PATH, os.defpath))}
    if _SAMPLER not in inherited and not precompiled:
        settings[_SAMPLER] = "0"
    if _DEEP_GEMM not in inherited and not found.compiles_deep_gemm:
        settings[_DEEP_GEMM] = "0"
    return settings


def sampler_is_precompiled() -> bool:
    """Whether FlashInfer's kernels are installed as a package of the same release, so that none is compiled."""
    try:
        return version("flashinfer-jit-cache").startswith(version("flashinfer-python"))
    except PackageNotFoundError:
        return False


def compile_limit_s(plan: Plan, environment: Mapping[str, str]) -> int:
    """Seconds that compiling may add to a start in this environment: none where an earlier start left its kernels."""
    if plan.on_cpu:
        return 0
    samples = environment.get(_SAMPLER) != "0" and not sampler_is_precompiled()
    multiplies = environment.get(_DEEP_GEMM) != "0" and plan.quant.scheme.startswith("fp8")
    return _LIMIT_S if samples or (multiplies and not _holds_files(deep_gemm_cache(environment))) else 0


def deep_gemm_cache(environ: Mapping[str, str]) -> Path:
    """Where DeepGEMM keeps what it compiled. Source: vllm 0.32 utils/deep_gemm.py, _lazy_init; envs.py."""
    if named := environ.get("DG_JIT_CACHE_DIR"):
        return Path(named)
    cache = environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(environ.get("VLLM_CACHE_ROOT") or f"{cache}/vllm").expanduser() / "deep_gemm"


def _holds_files(folder: Path) -> bool:
    return any(file.is_file() for file in folder.rglob("*"))


def _check_sampler(asked: str | None, tools: CudaToolkit, precompiled: bool) -> None:
    if asked in (None, "", "0") or precompiled or not tools.lacking:
        return
    raise UsageError(
        f"{_SAMPLER}={asked} in the environment: FlashInfer compiles its sampler when vLLM starts, and there is no "
        f"{', and no '.join(tools.lacking)} here; install it (CUDA_HOME names a toolkit), or unset {_SAMPLER}"
    )
