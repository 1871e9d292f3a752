"""What a forward and backward pass keeps for itself, in bytes per token or in all."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.training_constants import (
    ATTENTION_MATRIX_BYTES,
    BACKWARD_INTERMEDIATE_BYTES,
    LAYER_BYTES,
    LOGIT_BYTES,
    TILE_BYTES_ON_CPU,
    TILE_COLUMNS,
    TILE_TOKENS,
)
from qserve.planner.training.training_request import TrainingRequest

__all__ = [
    "cast_head_bytes",
    "checkpoint_bytes",
    "forward_bytes",
    "has_fp32_stream",
    "layer_bytes_per_token",
    "logits_bytes",
    "logits_kind",
    "peak_bytes",
    "recompute_bytes",
    "saved_bytes",
    "scored_logits_bytes",
    "stream_bytes",
]


def layer_bytes_per_token(model: TrainedModel, request: TrainingRequest) -> float:
    """Bytes that one layer saves a token, without recomputation, averaged over the layers.

    Linear in length with SDPA and flash attention; eager attention adds heads · length · 8.
    """
    spec = model.spec
    q_dim = spec.num_attention_heads * spec.head_dim
    kv_dim = spec.num_key_value_heads * spec.head_dim
    width = request.activation_bytes // 2  # in fp32 every 16-bit tensor is twice as wide
    saved = LAYER_BYTES.hidden * spec.hidden_size + LAYER_BYTES.heads * q_dim
    saved += LAYER_BYTES.intermediate * _active_intermediate(spec)
    saved += LAYER_BYTES.qk_norm * (q_dim + kv_dim) if spec.qk_norm else 0
    if spec.moe is not None:  # each routed expert has its own copies of input and output; the router one number each
        saved += LAYER_BYTES.routed_hidden * spec.moe.num_experts_per_tok * spec.hidden_size
        saved += LAYER_BYTES.router * spec.moe.num_experts
    saved += LAYER_BYTES.lora_input * model.adapter_input_dims
    if has_fp32_stream(request):
        saved += LAYER_BYTES.fp32_intermediate * _active_intermediate(spec)
    if request.attention == "eager":
        saved += ATTENTION_MATRIX_BYTES * spec.num_attention_heads * request.max_length
    return float(saved * width)


def saved_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """Activations of all layers, kept from forward to backward: no recomputation."""
    return round(layer_bytes_per_token(model, request) * model.spec.num_hidden_layers * request.tokens)


def checkpoint_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """Layer inputs, the only thing that gradient checkpointing keeps."""
    return stream_bytes(request) * model.spec.hidden_size * model.spec.num_hidden_layers * request.tokens


def stream_bytes(request: TrainingRequest) -> int:
    """Of an element of what layers hand on: fp32 norms make the whole stream fp32."""
    return 4 if has_fp32_stream(request) else request.activation_bytes


def has_fp32_stream(request: TrainingRequest) -> bool:
    """Whether norms in fp32 make it wider than a run in 16 bit has it."""
    return request.kbit_fp32 != "none" and request.activation_bytes == 2


def recompute_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """One layer, recomputed, with the gradients of its widest tensors."""
    gradients = BACKWARD_INTERMEDIATE_BYTES * _active_intermediate(model.spec)
    return round((layer_bytes_per_token(model, request) + gradients) * request.tokens)


def forward_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """A forward pass that keeps nothing (frozen weights, no graph): gate, up and product of one layer, two streams."""
    return (2 * 3 * _active_intermediate(model.spec) + 4 * model.spec.hidden_size) * request.tokens


def logits_bytes(model: TrainedModel, request: TrainingRequest, *, on_cpu: bool = False) -> int:
    """Logits, log-softmax and their gradients; nothing where a head gives one number a sequence."""
    if model.spec.head.kind != "lm":
        return 0
    if request.tiled_loss:
        return _tiled_loss_bytes(model, request, on_cpu)
    if request.fused_loss:
        return _fused_loss_bytes(model, request)
    each = LOGIT_BYTES[logits_kind(request)] * model.spec.vocab_size
    return each * request.logit_tokens + cast_head_bytes(model, request)


def logits_kind(request: TrainingRequest) -> str:
    """Which of LOGIT_BYTES a loss over whole logits takes."""
    if request.method in ("dpo", "ppo", "grpo"):
        return "rl-16bit" if request.precision in ("mixed", "pure") and request.zero_stage else "rl-fp32"
    return "lm" if request.upcast_logits else "lm-16bit"


def cast_head_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """autocast's copy of an fp32 lm_head."""
    return 2 * model.spec.vocab_size * model.spec.hidden_size if request.kbit_fp32 == "all" else 0


def scored_logits_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """Of a pass that is not trained on, with the loss of all of them; nothing where a head gives one number."""
    if model.spec.head.kind != "lm":
        return 0
    per = LOGIT_BYTES["scored"] if request.activation_bytes == 2 else 8  # fp32 logits are not copied
    return per * model.spec.vocab_size * request.logit_tokens


def peak_bytes(model: TrainedModel, request: TrainingRequest, *, on_cpu: bool = False) -> int:
    """All that a forward and backward pass holds at its peak."""
    if model.tuning == "head":
        return forward_bytes(model, request)
    logits = logits_bytes(model, request, on_cpu=on_cpu)
    if not request.gradient_checkpointing:
        return saved_bytes(model, request) + logits
    return checkpoint_bytes(model, request) + max(logits, recompute_bytes(model, request))


def _fused_loss_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """One chunk of 16-bit logits with its gradient, the gradients of all hidden states, and of lm_head if trained.

    Source: liger_kernel/ops/fused_linear_cross_entropy.py: chunks of next_power_of_2(tokens / ceil(V / H)) tokens.
    """
    spec, tokens = model.spec, request.logit_tokens
    chunk = min(tokens, 1 << (-(-tokens // -(-spec.vocab_size // spec.hidden_size)) - 1).bit_length())
    is_trained = model.tuning == "full" or model.train_embeddings
    lm_head = 2 * spec.vocab_size * spec.hidden_size if is_trained else 0
    return 4 * chunk * spec.vocab_size + 2 * tokens * spec.hidden_size + lm_head


def _tiled_loss_bytes(model: TrainedModel, request: TrainingRequest, on_cpu: bool) -> int:
    """One tile of logits, and in fp32 the gradients of all hidden states and of lm_head if trained.

    Source: trl/kernels/chunked_logprob.py. A CPU touches of the buffer only what the vocabulary fills.
    """
    spec, tokens = model.spec, request.logit_tokens
    width = request.activation_bytes
    rows, columns = min(tokens, TILE_TOKENS), TILE_COLUMNS
    tile = rows * min(columns, spec.vocab_size) * TILE_BYTES_ON_CPU if on_cpu else rows * columns * width
    is_trained = model.tuning == "full" or model.train_embeddings
    lm_head = 4 * spec.vocab_size * spec.hidden_size if is_trained else 0
    return tile + 4 * tokens * spec.hidden_size + lm_head


def _active_intermediate(spec: ModelSpec) -> int:
    """MLP width that a token passes through: of an MoE layer the routed and the shared experts."""
    if spec.moe is None:
        return spec.intermediate_size
    return spec.moe.num_experts_per_tok * spec.moe.moe_intermediate_size + spec.moe.shared_expert_intermediate_size
