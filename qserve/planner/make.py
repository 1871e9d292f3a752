"""From checkpoint, hardware and request to a `Plan`."""

from __future__ import annotations

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware
from qserve.core.workload import Workload
from qserve.planner import constants
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes
from qserve.planner.memory.transformers import activation_bytes
from qserve.planner.memory.weights import loaded_bytes
from qserve.planner.plan import DevicePlan, ModelSummary, Placement, Plan, QuantChoice
from qserve.planner.request import PlanRequest
from qserve.units import format_bytes

__all__ = ["make_plan"]

# Room per running sequence that a pool is made for, where memory allows; longer ones share it.
_POOL_TOKENS_PER_SEQ = 4096
# A service on a CPU leaves most of what is free to the others.
_CPU_POOL_SHARE = 0.3


def make_plan(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> Plan:
    """The plan for the transformers engine on the CPU; `fits` says whether it can be started."""
    spec, device = checkpoint.spec, hardware.cpu_device
    dtype = request.dtype or spec.dtype
    weights = loaded_bytes(checkpoint.counted_tensors, dtype, None)
    per_token = kv_bytes_per_token(spec, kv_element_bytes(request.kv_cache_dtype, dtype))
    max_num_seqs = request.max_num_seqs or 64
    batched = request.max_num_batched_tokens or 1024
    activations = activation_bytes(spec, dtype, batched, max_num_seqs)
    runtime = constants.PYTHON_TRANSFORMERS_CPU.num_bytes
    left = device.available_bytes - weights - activations - runtime
    max_model_len = request.max_model_len or max(16, min(spec.max_position_embeddings, max(left, 0) // per_token))
    wanted = max(max_model_len, max_num_seqs * min(max_model_len, _POOL_TOKENS_PER_SEQ)) * per_token
    pool = request.kv_cache_memory_bytes or max(
        max_model_len * per_token, min(wanted, int(max(left, 0) * _CPU_POOL_SHARE))
    )
    tokens = pool // per_token
    free = left - pool
    fits = free >= 0 and tokens >= max_model_len
    return Plan(
        model=ModelSummary(checkpoint.id, spec.architecture, checkpoint.parameters, per_token),
        engine="transformers",
        engine_version=request.engine_version or constants.TRANSFORMERS_VERSION,
        quant=QuantChoice(_scheme(dtype), checkpoint.id),
        dtype=dtype,
        kv_cache_dtype=request.kv_cache_dtype,
        workload=Workload(max_model_len, max_num_seqs, batched, request.prompt_len or max_model_len),
        placement=Placement(device_map="cpu", kv_cache_memory_bytes=pool),
        devices=(
            DevicePlan(
                device.name,
                device.total_bytes,
                weights,
                pool,
                activations,
                0,
                runtime,
                free,
                device.used_by_others_bytes,
            ),
        ),
        kv_cache_tokens=tokens,
        max_concurrency=round(tokens / max_model_len, 2),
        fits=fits,
        why_not=None if fits else f"{format_bytes(-free)} short on {device.name}",
        short_bytes=max(0, -free),
        notes=checkpoint.messages,
    )


def _scheme(dtype: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(dtype, dtype)
