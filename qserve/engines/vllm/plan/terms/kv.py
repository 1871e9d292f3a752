"""The KV cache: what the charged terms leave of the engine's share, in pages."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.memory.kv import index_bytes_per_token, kv_bytes_per_token, kv_element_bytes, kv_scale_bytes
from qserve.planner.term import TermKind
from qserve.units import MIB, format_bytes

__all__ = ["KvCache", "pages_formula", "share_formula"]


class KvCache(TermKind[Trial]):
    """Its bytes are what the others leave: the estimate puts them in."""

    name, column = "KV cache", "kv_cache"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return 0

    def formula(self, sizes: Trial, stage: int) -> str:
        pages = pages_formula(sizes)
        if sizes.candidate.request.kv_cache_memory_bytes is not None:
            return f"as asked by --kv-cache-memory-bytes; {pages}"
        graphs = " − graphs" if sizes.subtracts_cuda_graphs else ""
        return f"{share_formula(sizes)} − weights − activations − non-torch{graphs}; {pages}"

    def source(self, sizes: Trial) -> str:
        return f"vLLM {sizes.candidate.engine_version}, gpu_worker.py"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return max(0, int(num_bytes * 0.97) - 200 * MIB), int(num_bytes * 1.02) + 100 * MIB

    def is_charged(self, sizes: Trial) -> bool:
        return False

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _states(spec: ModelSpec) -> str:
    named = ("linear layers", "tables of n-grams" if spec.ngrams else "", "index" if spec.index else "")
    return " and ".join(filter(None, named))


def share_formula(sizes: Trial) -> str:
    """What the engine may take of the device."""
    return f"{format_bytes(sizes.device.total_bytes)} × {sizes.gpu_memory_utilization:g}"


def pages_formula(sizes: Trial) -> str:
    """Bytes of a token, and of the block that it lies in."""
    candidate, spec, layout = sizes.candidate, sizes.spec, sizes.layout
    element = kv_element_bytes(candidate.kv_cache_dtype, candidate.dtype)
    token = kv_bytes_per_token(spec, element, candidate.tensor_parallel_size, kv_scale_bytes(candidate.kv_cache_dtype))
    heads = max(1, spec.num_key_value_heads // candidate.tensor_parallel_size)
    layers = spec.num_full_layers + spec.num_sliding_layers
    pages = f"a block of {layout.block_tokens} tokens is {format_bytes(layout.block_bytes)}"
    state = f", and a sequence pins {layout.state_blocks} more for its {_states(spec)}" if layout.state_blocks else ""
    each = f"2 × {layers} layers × {heads} KV heads × {spec.head_dim} × {element} B"
    if spec.index:
        each += f" + {layers} × {index_bytes_per_token(spec)} B of index keys"
    return f"{each} = {format_bytes(token)} a token; {pages}{state}"
