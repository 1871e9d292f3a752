"""vLLM on CUDA: activation peak, CUDA graphs, and the defaults that decide them."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.planner import constants
from qserve.planner.versions import VllmVersion
from qserve.units import GIB

__all__ = [
    "activation_peak",
    "cuda_graph_bytes",
    "default_max_num_batched_tokens",
    "default_max_num_seqs",
    "encoder_peak",
    "num_cuda_graphs",
    "prompt_logprobs_bytes",
]

_ACTIVATION_BYTES = 2  # bf16 and fp16 alike
# The largest image of the Qwen vision processors, which vLLM profiles with: 4096 × 4096 pixels.
_ENCODER_TOKENS = 16384


def default_max_num_seqs(device: Device, version: VllmVersion) -> int:
    """1024 on cards of 70 GiB and more but the A100, else 256. Source: vllm EngineArgs.get_batch_defaults."""
    return 1024 if _is_large(device) and not version.is_v0_engine(device.compute_capability) else 256


def default_max_num_batched_tokens(device: Device, version: VllmVersion, max_model_len: int) -> int:
    """Tokens of one step of the API server: 8192 or 2048 by card; a whole prompt in the first engine."""
    if version.is_v0_engine(device.compute_capability):
        return max(max_model_len, 2048)
    if device.total_bytes >= 160 * GIB:
        return 16384
    return 8192 if _is_large(device) else 2048


def activation_peak(
    spec: ModelSpec,
    device: Device,
    version: VllmVersion,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    tensor_parallel_size: int = 1,
    with_encoder: bool = True,
) -> int:
    """Peak of vLLM's profile run on one rank: the sampler, the widest layer or the vision encoder, whichever is more.

    sampler: 14·S·V + 4·SMs·V + 2·T·H + base (38·S·V before 0.17, without the SM term)
    layer: 2·T·(3I/tp + 2H) + base; fused experts keep two buffers beside it.
    """
    workspace = _moe_workspace(spec, version, max_num_batched_tokens, tensor_parallel_size)
    embeddings = 0
    encoder = 0
    if spec.vision and with_encoder:
        encoder = encoder_peak(spec)
        embeddings = _ENCODER_TOKENS * spec.hidden_size * _ACTIVATION_BYTES
    language = max(
        _sampler_peak(spec, device, version, max_num_seqs, max_num_batched_tokens),
        _layer_peak(spec, max_num_batched_tokens, tensor_parallel_size),
    )
    return max(encoder, language + workspace + embeddings)


def encoder_peak(spec: ModelSpec) -> int:
    """The vision encoder on the largest image: pixels, residual stream twice, and the MLP before and after GELU."""
    vision = spec.vision
    if vision is None:
        return 0
    pixels: int = vision.in_channels * vision.temporal_patch_size * vision.patch_size * vision.patch_size
    widths = pixels + 2 * vision.hidden_size + 2 * vision.intermediate_size
    patches = _ENCODER_TOKENS * vision.spatial_merge_size * vision.spatial_merge_size
    return patches * widths * _ACTIVATION_BYTES


def prompt_logprobs_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """fp32 log-probabilities of a whole prompt step: `echo` with `logprobs`, as lm-eval asks."""
    return num_tokens * spec.vocab_size * 4


def cuda_graph_bytes(spec: ModelSpec, max_num_seqs: int, max_num_batched_tokens: int, num_layers: int) -> int:
    """Graphs of `num_layers` layers on one rank, at the sizes that vLLM captures."""
    is_rich = spec.moe is not None or spec.quantization is not None
    per_layer = constants.GRAPH_BYTES_PER_LAYER_RICH if is_rich else constants.GRAPH_BYTES_PER_LAYER
    return num_layers * num_cuda_graphs(max_num_seqs, max_num_batched_tokens) * per_layer.num_bytes


def num_cuda_graphs(max_num_seqs: int, max_num_batched_tokens: int) -> int:
    """Piecewise graphs up to min(2·S, 512) tokens and full ones up to S: 1, 2, 4, then steps of 8, of 16 from 256.

    Source: vllm VllmConfig._set_cudagraph_sizes (mode FULL_AND_PIECEWISE).
    """
    largest = min(2 * max_num_seqs, 512, max_num_batched_tokens)
    steps = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    return sum((size <= largest) + (size <= min(largest, max_num_seqs)) for size in steps)


def _sampler_peak(spec: ModelSpec, device: Device, version: VllmVersion, num_seqs: int, num_tokens: int) -> int:
    hidden = num_tokens * spec.hidden_size * _ACTIVATION_BYTES
    base = constants.ACTIVATION_BASE.num_bytes + hidden
    if spec.head.kind == "score":  # a pooling model samples nothing
        return base
    rows = min(num_seqs, num_tokens) * spec.vocab_size
    if not version.samples_with_triton:
        return constants.SAMPLER_BYTES_SORT * rows + base
    return constants.SAMPLER_BYTES_TRITON * rows + 4 * device.sm_count * spec.vocab_size + base


def _layer_peak(spec: ModelSpec, num_tokens: int, tensor_parallel_size: int) -> int:
    widths = 3 * spec.intermediate_size // tensor_parallel_size + 2 * spec.hidden_size
    linear = spec.linear_attention
    if linear:  # projections of Gated DeltaNet, and a state of k_dim × v_dim per chunk of 64 tokens
        chunk = linear.num_value_heads * linear.key_head_dim * linear.value_head_dim // 64
        widths = max(widths, (2 * (linear.conv_dim + linear.value_dim) + chunk) // tensor_parallel_size)
    return num_tokens * widths * _ACTIVATION_BYTES + constants.ACTIVATION_MLP_BASE.num_bytes


def _moe_workspace(spec: ModelSpec, version: VllmVersion, num_tokens: int, tensor_parallel_size: int) -> int:
    """T·top_k·(max(I, H) + max(2I, H))·2: two buffers. Source: vllm TritonExperts.workspace_shapes."""
    moe = spec.moe
    if moe is None or not version.keeps_moe_workspace:
        return 0
    inner = moe.moe_intermediate_size // tensor_parallel_size
    widths = max(inner, spec.hidden_size) + max(2 * inner, spec.hidden_size)
    return num_tokens * moe.num_experts_per_tok * widths * _ACTIVATION_BYTES


def _is_large(device: Device) -> bool:
    is_a100 = "a100" in device.name.lower() or device.sm_count == 108
    return device.total_bytes >= 70 * GIB and not is_a100
