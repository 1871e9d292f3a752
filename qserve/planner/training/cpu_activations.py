"""What a forward pass keeps for its backward pass on a CPU, counted operation by operation, in bytes.

Of a decoder layer, by what is trained: frozen weights need no input kept, adapters over 16-bit weights each keep a copy
of their own in fp32. Held to torch's own saved tensors by tests/tiny/training/test_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.planner.training.models import TrainedModel
from qserve.planner.training.saved_activations import layer_bytes_per_token
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["backward_bytes", "ends_bytes", "kept_bytes", "layer_bytes", "unkept_bytes"]

_ADAPTED = {"all-linear": "q k v o gate up down", "attention": "q k v o", "qkv": "q k v"}


@dataclass(frozen=True)
class _Widths:
    """Bytes of one element: of an activation, of a norm's product with its weight, and of a projection's kept input.

    `is_own`: every projection keeps a copy of its input instead of sharing one.
    """

    activation: int
    normalized: int
    kept_input: int
    is_own: bool


def layer_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """One layer, all tokens. Layers of experts and of linear attention are taken as on a card."""
    spec = model.spec
    if spec.moe is not None or spec.is_hybrid:
        return round(layer_bytes_per_token(model, request) * request.tokens)
    widths = _widths(model, request)
    parts = (_norms(model, widths), _projections(model, request, widths), _attention(model, request, widths.activation))
    mlp = 3 * widths.activation * spec.intermediate_size
    return (sum(parts) + mlp) * request.tokens


def kept_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """Inputs of all layers, which gradient checkpointing keeps; the residual stream is fp32 under autocast."""
    is_amp = request.precision == "amp" and model.tuning in ("full", None)
    width = 4 if is_amp else request.activation_bytes
    return width * model.spec.hidden_size * model.spec.num_hidden_layers * request.tokens


def backward_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """Gradients of one MLP's widest tensors and of the residual stream, while the layer is in its backward pass; of a
    quantized base the matrix at work, too, as it is multiplied.
    """
    width, spec = request.activation_bytes, model.spec
    matrix = spec.intermediate_size * spec.hidden_size if model.quantization is not None else 0
    return width * (2 * (spec.intermediate_size + spec.hidden_size) * request.tokens + matrix)


def ends_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """The last norm: its input, what it normalized, and its output."""
    return 3 * request.activation_bytes * model.spec.hidden_size * request.tokens


def unkept_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    """A pass without a graph: gate, up and product of one layer, and the residual stream with its norm."""
    return request.activation_bytes * (3 * model.spec.intermediate_size + 4 * model.spec.hidden_size) * request.tokens


def _widths(model: TrainedModel, request: TrainingRequest) -> _Widths:
    width, is_full = request.activation_bytes, model.tuning == "full"
    if request.precision == "amp" and not model.has_16_bit_adapters:
        return _Widths(width, 4 if is_full else 0, 2, is_own=True)  # autocast's 16-bit copy of an input a projection
    trained = width if is_full else _adapter_bytes(model, request)
    return _Widths(width, width if is_full else 0, trained, is_own=trained != width)


def _adapter_bytes(model: TrainedModel, request: TrainingRequest) -> int:
    return 2 if model.has_16_bit_adapters or request.precision == "mixed" else 4


def _adapted(model: TrainedModel) -> frozenset[str]:
    """Projections whose weights, or whose adapters, are trained."""
    return frozenset(_ADAPTED["all-linear" if model.tuning == "full" else model.lora_targets].split())


def _norms(model: TrainedModel, widths: _Widths) -> int:
    """Two over the residual stream, and over q and k where the family has it: each keeps its input in fp32."""
    spec = model.spec
    heads = spec.num_attention_heads + spec.num_key_value_heads
    kept = 2 * ((4 + widths.normalized) * spec.hidden_size + 4)
    if not spec.qk_norm:
        return kept
    return kept + heads * ((4 + min(widths.normalized, widths.activation)) * spec.head_dim + 4)


def _projections(model: TrainedModel, request: TrainingRequest, widths: _Widths) -> int:
    """Inputs of what is trained. The attention's output is kept by the attention as well."""
    spec, adapted = model.spec, _adapted(model)
    num_hidden = sum(
        len(group & adapted) if widths.is_own else bool(group & adapted) for group in ({"q", "k", "v"}, {"gate", "up"})
    )
    kept = widths.kept_input * num_hidden * spec.hidden_size
    kept += widths.kept_input * spec.intermediate_size * ("down" in adapted)
    is_cast = widths.is_own and model.tuning != "full"
    kept += widths.kept_input * spec.num_attention_heads * spec.head_dim * (is_cast and "o" in adapted)
    if model.tuning not in ("lora", "qlora"):
        return kept
    return kept + _adapter_bytes(model, request) * model.rank * len(adapted) + _kept_by_int8(model, widths, adapted)


def _kept_by_int8(model: TrainedModel, widths: _Widths, adapted: frozenset[str]) -> int:
    """LLM.int8 keeps the input of every projection, trained or not, unless an adapter keeps the same tensor.

    Source: bitsandbytes 0.50, autograd/_functions.py: MatMul8bitLt. The attention's output is kept by the attention.
    """
    spec = model.spec
    if model.base != "int8":
        return 0
    inputs = (
        (spec.hidden_size, {"q", "k", "v"}),
        (spec.hidden_size, {"gate", "up"}),
        (spec.intermediate_size, {"down"}),
    )
    return sum(widths.activation * size for size, readers in inputs if widths.is_own or not readers & adapted)


def _attention(model: TrainedModel, request: TrainingRequest, width: int) -> int:
    """q, k, v and output. Rows that are padded have a mask, and with one k and v are expanded to all heads."""
    spec = model.spec
    queries, keys = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    if request.attention == "eager":
        return 4 * width * queries + (4 if width == 4 else 6) * spec.num_attention_heads * request.max_length
    is_padded = request.sequences > 1 or request.method == "grpo"
    held = 2 * queries + 2 * (queries if is_padded else keys)
    return width * held + 4 * spec.num_attention_heads + is_padded * width * request.max_length
