"""The transformers engine: peaks of `generate` on CUDA by release, and of continuous batching in fixed steps."""

from __future__ import annotations

from qserve.core.families import has_dense_decoder
from qserve.core.hardware import CpuFeatures
from qserve.core.model_spec import ModelSpec
from qserve.core.shortlist import has_shortlist
from qserve.core.tensors import dtype_bytes
from qserve.engines.transformers.kernels.quantized_products import experts_row_bytes, experts_rows, scratch_bytes
from qserve.engines.transformers.kernels.shapes import MAX_KERNELS, num_row_counts
from qserve.engines.transformers.plan.constants import PROMPT_READER, READER_WORD_BYTES
from qserve.units import MIB

__all__ = [
    "activation_bytes",
    "exllama_scratch_bytes",
    "fp8_experts_bytes",
    "fp8_rows_bytes",
    "generate_extra_bytes",
    "int8_scratch_bytes",
    "num_kernels",
    "num_product_shapes",
    "prefill_bytes",
    "reader_bytes",
    "returned_logits_bytes",
    "rotary_tables_bytes",
    "scoring_logits_bytes",
    "shortlist_bytes",
    "unpacked_bytes",
]

SCORING_PIECE_BYTES = 64 * MIB

# The exllama kernels of auto_gptq, later replaced.
_EXLLAMA_UNTIL = (4, 49)
# From here on the library prefills in bounded steps; before, a prompt went through in one piece.
_CHUNKED_SINCE = (4, 50)
_LAST_LOGIT_ONLY_SINCE = (4, 45)
_CHUNK_TOKENS = 2048
_TABLE_POSITIONS = 32768


def activation_bytes(spec: ModelSpec, dtype: str, num_tokens: int, num_sequences: int) -> int:
    """Peak of one step: the MLP of `num_tokens` tokens, and logits, of the sequences that sample or of a scored piece.

    A step samples or scores, never both. Sampled logits are held in the model's dtype and again in fp32.
    """
    step = prefill_bytes(spec, dtype, num_tokens)
    if spec.head.kind == "score":
        return step
    sampled = num_sequences * spec.vocab_size * (dtype_bytes(dtype) + 4)
    return step + max(sampled, scoring_logits_bytes(spec, dtype, num_tokens))


def scoring_logits_bytes(spec: ModelSpec, dtype: str, num_tokens: int) -> int:
    """Logits of one piece of a scored prompt: the head's output, the same in fp32, and its log-softmax.

    The worker scores in pieces of SCORING_PIECE_BYTES of fp32 logits
    (engines/transformers/worker/batching/prompt_logprobs.py), and of a small vocabulary all of a row's
    `num_tokens` at once.
    """
    rows = min(num_tokens, max(1, SCORING_PIECE_BYTES // (4 * spec.vocab_size)))
    return rows * spec.vocab_size * (dtype_bytes(dtype) + 8)


def shortlist_bytes(spec: ModelSpec, dtype: str, cpu: CpuFeatures) -> int:
    """The copy of a language model's head in int8, with a scale a token, that steps of few sequences read first.

    On a CPU whose bf16 products are ours (model/cpu/shortlist.py). There is none without a C compiler, and none beside
    a tied head without a file (--load-format dummy): then the plan counts too much.
    """
    if spec.head.kind == "score" or dtype != "bfloat16" or not cpu.has_own_products:
        return 0
    return spec.vocab_size * (spec.hidden_size + 4) if has_shortlist(spec.vocab_size, spec.hidden_size) else 0


def num_product_shapes(spec: ModelSpec) -> int:
    """Different matrices of a dense decoder, as (inputs, outputs); layers are alike, and q is like o only in shape."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = (heads * spec.head_dim for heads in (spec.num_attention_heads, spec.num_key_value_heads))
    shapes = {(hidden, query), (hidden, key), (query, hidden), (hidden, inner), (inner, hidden)}
    return len(shapes if spec.head.kind == "score" else shapes | {(hidden, spec.vocab_size)})


def num_kernels(spec: ModelSpec, num_tokens: int) -> int:
    """Kernels that oneDNN has compiled and keeps once steps of every size up to `num_tokens` were taken.

    Experts and linear attention compute in more shapes than those: as many as are kept at all.
    """
    if spec.moe or spec.linear_attention:
        return MAX_KERNELS
    return min(MAX_KERNELS, num_row_counts(num_tokens) * num_product_shapes(spec))


def reader_bytes(spec: ModelSpec) -> int:
    """Resident memory of one process that reads prompts: interpreter and libraries, and the tokenizer's words."""
    return PROMPT_READER.num_bytes + spec.vocab_size * READER_WORD_BYTES


def int8_scratch_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """What LLM.int8 takes on a CPU for the widest layer of a step: 25·T·I.

    Measured by VmHWM on bitsandbytes 0.50: the input in fp16, int8 and fp32, the product in int32, fp32 and the output.
    """
    return 25 * num_tokens * max(spec.intermediate_size, spec.hidden_size)


def unpacked_bytes(spec: ModelSpec, dtype: str) -> int:
    """What a card has in 16 bit at once of the largest weight in 8 or 4 bits, while many rows are multiplied.

    See engines/transformers/kernels/quantized_products.py; bitsandbytes leaves experts as they are. Steps of a dense
    decoder multiply by gate and up, and by q, k and v, as by one weight.
    """
    hidden, inner = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = (num * spec.head_dim for num in (spec.num_attention_heads, spec.num_key_value_heads))
    shapes = [(inner, hidden), (hidden, inner), (heads, hidden), (hidden, heads)]
    if has_dense_decoder(spec.architecture):
        shapes += [(2 * inner, hidden), (heads + 2 * kv_heads, hidden)]
    return max(scratch_bytes(*shape, dtype_bytes(dtype)) for shape in shapes if all(shape))


def fp8_rows_bytes(spec: ModelSpec, dtype: str, num_tokens: int) -> int:
    """What a product by a weight in fp8 takes of its rows: a copy that is scaled, and their codes (model/fp8/)."""
    return num_tokens * max(spec.intermediate_size, spec.hidden_size) * (dtype_bytes(dtype) + 1)


def fp8_experts_bytes(spec: ModelSpec, dtype: str, num_tokens: int) -> int:
    """What is between the grouped products of a layer's experts in fp8 (model/fp8/triton_experts.py)."""
    if spec.moe is None:
        return 0
    sizes = spec.hidden_size, spec.moe.moe_intermediate_size, spec.moe.num_experts_per_tok, dtype_bytes(dtype)
    return min(num_tokens, experts_rows(*sizes)) * experts_row_bytes(*sizes)


def prefill_bytes(spec: ModelSpec, dtype: str, num_tokens: int) -> int:
    """2·T·(3I + 4H) in 16 bit: gate, up and their product beside the residual stream."""
    inner = spec.intermediate_size
    if spec.moe:  # experts run one after another; the shared one sees every token
        inner = max(spec.moe.moe_intermediate_size, spec.moe.shared_expert_intermediate_size)
    return dtype_bytes(dtype) * num_tokens * (3 * inner + 4 * spec.hidden_size)


def generate_extra_bytes(
    spec: ModelSpec, dtype: str, release: tuple[int, ...], prompt_len: int, max_model_len: int, kv_token_bytes: int
) -> int:
    """What one `generate` call takes beyond weights and the final KV cache, on CUDA, tables of angles left out.

    The peak is at the end of the prompt or at the end of the answer: the prompt's activations count only as far as
    they exceed the cache that is still to come.
    """
    to_come = (max_model_len - prompt_len) * kv_token_bytes
    if release < _LAST_LOGIT_ONLY_SINCE:
        # Logits of the whole prompt in 16 and 32 bit, and the last hidden states.
        prompt = prompt_len * (spec.vocab_size * (dtype_bytes(dtype) + 4) + spec.hidden_size * dtype_bytes(dtype))
        # The cache was a tuple: the old one lives until the step that made the new one ends.
        return max(max_model_len * kv_token_bytes, prompt - to_come)
    step = min(prompt_len, _CHUNK_TOKENS) if release >= _CHUNKED_SINCE else prompt_len
    return max(_repeated_kv_bytes(spec, dtype, max_model_len), prefill_bytes(spec, dtype, step) - to_come)


def _repeated_kv_bytes(spec: ModelSpec, dtype: str, num_tokens: int) -> int:
    """K and V of one layer, repeated from the KV heads to all heads: what SDPA does in a decode step, flash does not.

    The AWQ rows of the published benchmarks fit this to 0.5 % from 4B to 32B; the others ran with flash attention.
    """
    if spec.quantization is None or spec.quantization.scheme != "awq":
        return 0
    return 2 * num_tokens * spec.num_attention_heads * spec.head_dim * dtype_bytes(dtype)


def rotary_tables_bytes(spec: ModelSpec, dtype: str, release: tuple[int, ...]) -> int:
    """Before 4.45 every layer kept cos and sin of 32768 positions; since then they are computed as needed."""
    if release >= _LAST_LOGIT_ONLY_SINCE:
        return 0
    return 2 * spec.num_hidden_layers * _TABLE_POSITIONS * spec.head_dim * dtype_bytes(dtype)


def returned_logits_bytes(spec: ModelSpec, release: tuple[int, ...], prompt_len: int) -> int:
    """fp32 logits of the prompt on the first of several cards: accelerate moves outputs to where inputs came from."""
    return 4 * spec.vocab_size * prompt_len if release < _LAST_LOGIT_ONLY_SINCE else 0


def exllama_scratch_bytes(spec: ModelSpec, release: tuple[int, ...]) -> int:
    """2·I·H: one dequantized MLP weight, kept by the exllama kernels that GPTQ 4 bit ran on."""
    is_exllama = spec.quantization is not None and spec.quantization.scheme == "gptq-int4"
    return 2 * spec.intermediate_size * spec.hidden_size if is_exllama and release < _EXLLAMA_UNTIL else 0
