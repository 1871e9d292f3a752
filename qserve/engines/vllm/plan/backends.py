"""Which of vLLM's own ways a candidate takes for attention and for the all-reduce over its ranks."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.speed.terms.card import card_of

__all__ = [
    "captures_drafts",
    "fuses_all_reduce",
    "is_datacenter_blackwell",
    "reduces_by_nccl",
    "runs_flash_attention_3",
    "runs_flashinfer",
]

_GIB = 1024**3
_OWN_ALL_REDUCE_RANKS = (2, 4, 6, 8)
_CACHES_WITHOUT_FLASH_ATTENTION = ("fp8_e5m2", "fp8_per_token_head", "int8_per_token_head", "nvfp4")


def fuses_all_reduce(candidate: Candidate) -> bool:
    """Data-centre cards from Hopper on; a described card without cc= is one by its 132 SMs and its memory."""
    device = candidate.devices[0]
    is_described_hopper = device.sm_count == 132 and device.total_bytes >= 70 * _GIB
    return is_described_hopper or device.compute_capability in ((9, 0), (10, 0), (10, 3))


def is_datacenter_blackwell(device: Device) -> bool:
    return device.compute_capability in ((10, 0), (10, 3))


def runs_flash_attention_3(candidate: Candidate) -> bool:
    """Hopper alone has it; every other card runs version 2. Source: vllm fa_utils.py, get_flash_attn_version.

    It reads no cache in fp8_e5m2 or NVFP4 or with a scale a head, and an index of sparse attention has kernels of its
    own. Source: vllm 0.32 flash_attn.py, supported_kv_cache_dtypes; models/qwen4_exp/nvidia/qsa.py.
    """
    reads = candidate.kv_cache_dtype not in _CACHES_WITHOUT_FLASH_ATTENTION
    return _is_hopper(candidate) and reads and candidate.spec.index is None


def runs_flashinfer(candidate: Candidate) -> bool:
    """Data-centre Blackwell's first choice, and elsewhere from Ampere on what reads a cache in 8 or 4 bit.

    Version 2 of FlashAttention has no such cache, version 3 has one in fp8_e4m3. Triton alone reads scales a head; AMD
    has neither, and models with an index of sparse attention run kernels of their own.
    Source: vllm platforms/cuda.py, _get_backend_priorities; flashinfer.py, triton_attn.py, supported_kv_cache_dtypes;
    logs of 0.19 to 0.31 ("Using FLASHINFER attention").
    """
    device, cache = candidate.devices[0], candidate.kv_cache_dtype
    if candidate.on_cpu or _is_amd(device) or (device.compute_capability or (8, 0)) < (8, 0):
        return False
    if cache.endswith("per_token_head") or candidate.spec.index is not None:
        return False
    if is_datacenter_blackwell(device) or cache.startswith("nvfp4"):
        return True
    return cache.startswith("fp8") and not runs_flash_attention_3(candidate)


def captures_drafts(candidate: Candidate, version: VllmVersion) -> bool:
    """Whether whole decode steps of several drafts are captured: by FlashInfer where it has a kernel for them.

    On data-centre Blackwell that is TensorRT-LLM's, on 12.x from 0.28 on XQA, of NVFP4 seen in 0.32.
    Source: vllm flashinfer.py, get_cudagraph_support; vllm#49547 ("PIECEWISE: 49/49, FULL: 31/31" of 0.28 on 12.1, and
    none before), vllm#54992 (none on 8.6).
    """
    device = candidate.devices[0]
    if not runs_flashinfer(candidate) or is_datacenter_blackwell(device):
        return True
    first = (0, 32) if candidate.kv_cache_dtype.startswith("nvfp4") else (0, 28)
    return (device.compute_capability or (0, 0))[0] == 12 and version.release >= first


def reduces_by_nccl(candidate: Candidate) -> bool:
    """Whether ranks sum by NCCL, as vLLM's own all-reduce is off.

    It needs 2, 4, 6 or 8 ranks whose cards reach each other's memory: a pair over PCIe does, more than two only over
    NVLink. GeForce drivers allow none (a bridge between two RTX 3090, or a patched driver, is not seen here).
    Source: vllm custom_all_reduce.py; "Custom allreduce is disabled because …" in its logs.
    """
    ranks, device = candidate.tensor_parallel_size, candidate.devices[0]
    if candidate.on_cpu or ranks == 1 or _is_amd(device):  # whose RCCL was measured nowhere
        return False
    if ranks not in _OWN_ALL_REDUCE_RANKS:
        return True
    interconnect = card_of(device).interconnect
    if interconnect == "nvlink" or _is_sold_with_nvlink(candidate):
        return False
    return ranks > 2 or interconnect.startswith("geforce") or "GeForce" in device.known_as


def _is_hopper(candidate: Candidate) -> bool:
    return fuses_all_reduce(candidate) and not is_datacenter_blackwell(candidate.devices[0])


def _is_amd(device: Device) -> bool:
    """By its name: a card that is described by its memory is NVIDIA's, with or without a compute capability."""
    return device.compute_capability is None and device.name.startswith("AMD")


def _is_sold_with_nvlink(candidate: Candidate) -> bool:
    """By its name, or as a described card from Hopper on; those that sit in a PCIe slot say so in their names."""
    name = candidate.devices[0].name
    return "SXM" in name or (fuses_all_reduce(candidate) and not ("PCIe" in name or name.endswith("NVL")))
