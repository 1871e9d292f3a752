"""What vLLM chooses where nobody says: sequences and tokens of a step, by card and release."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

from qserve.core.hardware import Device
from qserve.engines.vllm.plan.backends import is_datacenter_blackwell
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.trial import Captures
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.options import options_of
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.units import GIB

__all__ = ["default_max_num_batched_tokens", "default_max_num_seqs", "replayed_tokens", "unbounded"]


def default_max_num_seqs(device: Device, version: VllmVersion) -> int:
    """1024 on cards of 70 GiB and more but the A100, else 256. Source: vllm EngineArgs.get_batch_defaults.

    Of a GPU that shares the CPU's memory NVML states no size, and vLLM takes the small defaults.
    """
    return 1024 if _is_large(device) and not version.is_v0_engine(device.compute_capability) else 256


def default_max_num_batched_tokens(device: Device, version: VllmVersion, max_model_len: int) -> int:
    """Tokens of one step of the API server: 8192 or 2048 by card; a whole prompt in the first engine.

    That one cut prompts into steps of 2048 where they may be longer than 32768. Source: vllm 0.7 arg_utils.py.
    """
    if version.is_v0_engine(device.compute_capability):
        return max(max_model_len, 2048) if max_model_len <= 32768 else 2048
    if not _is_large(device):
        return 2048
    return 16384 if device.total_bytes >= 160 * GIB else 8192


def unbounded(plan: Plan, device: Device, request: PlanRequest) -> Plan:
    """The plan with what vLLM chooses where nobody names limits, in the place of the least that was tried."""
    version = VllmVersion.parse(plan.engine_version)
    workload = plan.workload
    batched = default_max_num_batched_tokens(device, version, workload.max_model_len)
    seqs = request.max_num_seqs or default_max_num_seqs(device, version)
    tokens = request.max_num_batched_tokens or max(batched, request.max_num_seqs or 1)
    limits = replace(workload, max_num_seqs=min(seqs, tokens), max_num_batched_tokens=tokens)
    return replace(plan, workload=limits, engine_args=_graph_flags(request.of(VllmOptions)))


def replayed_tokens(plan: Plan, device: Device) -> int:
    """Tokens of the largest step that the plan's server replays from CUDA graphs; 0 where it captures none.

    Source: vllm VllmConfig._set_cudagraph_sizes.
    """
    if "--enforce-eager" in plan.engine_args:
        return 0
    values = dict(pairwise(plan.engine_args))
    drafts = int(json.loads(values.get("--speculative-config", "{}")).get("num_speculative_tokens", 0))
    asked = int(values.get("--max-cudagraph-capture-size", 0)) or None
    default = VllmVersion.parse(plan.engine_version).largest_capture(is_datacenter_blackwell(device))
    steps = plan.workload.max_num_seqs, plan.workload.max_num_batched_tokens
    return Captures(*steps, drafts, largest_asked=asked, largest_by_default=default).largest


def _graph_flags(options: VllmOptions) -> tuple[str, ...]:
    """What decides of graphs, as vLLM is told it: a plan that does not fit has no flags otherwise."""
    names = ("enforce_eager", "num_speculative_tokens", "num_ngram_tokens", "max_cudagraph_capture_size")
    found = (one for one in options_of(VllmOptions) if one.name in names)
    return tuple(part for one in found for part in one.arguments(getattr(options, one.name)))


def _is_large(device: Device) -> bool:
    is_a100 = "a100" in device.known_as.lower() or device.sm_count == 108
    return device.total_bytes >= 70 * GIB and not is_a100 and not device.shares_ram
