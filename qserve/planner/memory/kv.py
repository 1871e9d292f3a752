"""KV cache: bytes per token where it grows, bytes per sequence where it is a state, and how both share pages.

Beside keys and values stand the keys of an index, one for so many tokens, and beside states of linear attention those
of the convolutions behind tables of n-grams.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.core.model_spec import LinearAttention, ModelSpec, NgramTables
from qserve.core.tensors import dtype_bytes

__all__ = [
    "KvLayout",
    "StateOptions",
    "index_bytes_per_token",
    "kv_bytes_per_token",
    "kv_element_bytes",
    "kv_layout",
    "kv_scale_bytes",
    "state_bytes",
]

_BLOCK_TOKENS = 16  # vLLM's default block size on CUDA
_INDEX_BYTES = 2
_UNBOUNDED = 1 << 40  # tokens of a sequence whose layers all slide: the positions end first


@dataclass(frozen=True)
class StateOptions:
    """What a hybrid's pages depend on beside the model.

    `state_dtype` is vLLM's --mamba-ssm-cache-dtype (None: the config's own). `align` is the mamba cache mode with
    prefix caching on. `num_speculative_tokens` are those of the MTP head (0: not used).
    """

    dtype: str = "bfloat16"
    state_dtype: str | None = None
    align: bool = False
    num_speculative_tokens: int = 0


@dataclass(frozen=True)
class KvLayout:
    """One rank's cache, in blocks.

    `block_tokens` tokens of every attention layer of a group share one block of `block_bytes`. A sequence needs
    `state_blocks` more, whatever its length. Where every layer slides, no sequence keeps more than `window_tokens`.
    """

    block_tokens: int
    block_bytes: int
    state_blocks: int = 0
    num_groups: int = 1
    window_tokens: int | None = None

    def num_blocks(self, cache_bytes: int) -> int:
        """Whole blocks in `cache_bytes`."""
        return max(0, cache_bytes) // self.block_bytes

    def blocks_per_sequence(self, num_tokens: int) -> int:
        """Blocks that one sequence of `num_tokens` pins."""
        if self.window_tokens is not None and num_tokens > self.window_tokens:
            return self._window_blocks
        return -(-num_tokens // self.block_tokens) + self.state_blocks

    @property
    def _window_blocks(self) -> int:
        """Blocks of a full window: one more than its tokens fill, as it starts inside a block."""
        return -(-(self.window_tokens or 0) // self.block_tokens) + 1

    def bytes_per_sequence(self, num_tokens: int) -> int:
        return self.blocks_per_sequence(num_tokens) * self.block_bytes

    def least_bytes(self, max_num_seqs: int) -> int:
        """What a start needs: where sequences have states, a block for each, or vLLM refuses."""
        return max_num_seqs * self.block_bytes if self.state_blocks else 0

    def max_concurrency(self, cache_bytes: int, max_model_len: int) -> float:
        """Sequences of full length at once, as vLLM logs it."""
        return self.num_blocks(cache_bytes) / self.blocks_per_sequence(max_model_len)

    def max_tokens_of_one_sequence(self, cache_bytes: int) -> int:
        blocks = self.num_blocks(cache_bytes) - self.state_blocks
        if self.window_tokens is not None and blocks >= self._window_blocks:
            return _UNBOUNDED
        return max(0, blocks) * self.block_tokens


# Four bits, and a scale of a byte for each sixteen elements of a head. Source: vllm 0.32 utils/torch_utils.py,
# nvfp4_kv_cache_full_dim, which FlashInferBackend.customize_spec makes the size of a page.
_NVFP4_BYTES = 9 / 16


def kv_element_bytes(kv_cache_dtype: str, dtype: str) -> float:
    """Bytes of one K or V element, with the scales of its block; `auto` is the model's dtype."""
    if kv_cache_dtype == "nvfp4":
        return _NVFP4_BYTES
    return dtype_bytes(dtype if kv_cache_dtype == "auto" else kv_cache_dtype)


def kv_scale_bytes(kv_cache_dtype: str) -> int:
    """Bytes that a quantized cache keeps per head and token beside the elements."""
    return 4 if kv_cache_dtype.endswith("_per_token_head") else 0


def kv_bytes_per_token(
    spec: ModelSpec, element_bytes: float, tensor_parallel_size: int = 1, scale_bytes: int = 0
) -> int:
    """Bytes of one token on one rank: 2 · layers · kv_heads · head_dim · bytes, over layers with a cache.

    KV heads split over tensor-parallel ranks, and replicate where there are fewer heads than ranks. Keys of an index
    are added, whole on every rank.
    """
    layers = spec.num_full_layers + spec.num_sliding_layers
    keys_and_values = layers * _layer_token_bytes(spec, element_bytes, tensor_parallel_size, scale_bytes)
    return keys_and_values + layers * index_bytes_per_token(spec)


def index_bytes_per_token(spec: ModelSpec) -> int:
    """Of the index of one layer: a key in 16 bit for every block of tokens, rounded up; 0 where there is no index.

    Source: vllm 0.32 models/qwen4_exp/common/qsa_cache.py, QSACompressedKeyCache; it stays in 16 bit beside a cache in
    fp8.
    """
    return -(-_index_block_bytes(spec) // spec.index.compress_ratio) if spec.index else 0


def state_bytes(
    linear: LinearAttention, dtype: str, state_dtype: str | None, extra_columns: int, tensor_parallel_size: int = 1
) -> int:
    """Bytes of one linear-attention layer's state for one sequence on one rank.

    The convolution keeps `kernel − 1 + extra_columns` columns in the model's dtype; the recurrent state is
    n_v · v_dim · k_dim in `state_dtype`, else in the config's `mamba_ssm_dtype`, else in the model's dtype.
    """
    conv = linear.conv_dim * (linear.conv_kernel_dim - 1 + extra_columns) * dtype_bytes(dtype)
    element_bytes = dtype_bytes(state_dtype or linear.state_dtype or dtype)
    recurrent = linear.num_value_heads * linear.value_head_dim * linear.key_head_dim * element_bytes
    return (conv + recurrent) // tensor_parallel_size


def kv_layout(
    spec: ModelSpec,
    element_bytes: float,
    options: StateOptions,
    tensor_parallel_size: int = 1,
    block_size: int | None = None,
    scale_bytes: int = 0,
    step_tokens: int = 0,
) -> KvLayout:
    """vLLM's pages on one rank.

    Hybrids: the attention block grows until its page holds a whole state, so one layer of either kind fills a page;
    linear layers come in groups as large as the attention group. Where every layer slides, a sequence keeps the
    window and what one step of `step_tokens` adds; a model that mixes is counted as if none did. An index packs its
    keys beside the page of its layer, and each sequence has a block for those that are not complete yet; states behind
    tables of n-grams are groups of their own, whole on every rank.
    Source: vllm v1/core/kv_cache_utils.py and HybridAttentionMambaModelConfig; checked on start-up logs 0.10 to 0.29.
    With an index: _get_packed_kv_cache_groups; vllm#54458 and vllm#54426 (blocks of 1600 tokens, 17 for the states of
    a sequence with two drafts).
    """
    grain = max(_BLOCK_TOKENS, block_size or 0)
    token_bytes = _layer_token_bytes(spec, element_bytes, tensor_parallel_size, scale_bytes)
    if spec.linear_attention is None:
        layers = spec.num_full_layers + spec.num_sliding_layers
        slides = spec.sliding_window is not None and spec.num_sliding_layers == spec.num_hidden_layers
        window = (spec.sliding_window or 0) - 1 + step_tokens if slides else None
        return KvLayout(grain, layers * grain * token_bytes, window_tokens=window)
    state = state_bytes(
        spec.linear_attention, options.dtype, options.state_dtype, options.num_speculative_tokens, tensor_parallel_size
    )
    if spec.ngrams:
        state = max(state, _table_state_bytes(spec, spec.ngrams, options))
    block_tokens = grain * -(-state // (grain * token_bytes))
    group_layers = max(1, spec.num_full_layers + (spec.mtp_layers if options.num_speculative_tokens else 0))
    state_groups = -(-spec.num_linear_layers // group_layers)
    if spec.ngrams:
        state_groups += -(-len(spec.ngrams.layers) // group_layers)
    states = (2 if options.align else 1) + options.num_speculative_tokens
    page, open_blocks = block_tokens * token_bytes, 0
    if spec.index:
        page, open_blocks = page + block_tokens // spec.index.compress_ratio * _index_block_bytes(spec), 1
    return KvLayout(
        block_tokens, group_layers * page, state_groups * states + open_blocks, state_groups + 1 + open_blocks
    )


def _index_block_bytes(spec: ModelSpec) -> int:
    """The index's key of one block of tokens."""
    return spec.index.num_key_heads * spec.index.head_dim * _INDEX_BYTES if spec.index else 0


def _table_state_bytes(spec: ModelSpec, tables: NgramTables, options: StateOptions) -> int:
    """What the convolution behind a table keeps of a sequence: every stream of the tokens that it reads, and drafts.

    Source: vllm 0.32 models/qwen4_exp/nvidia/model.py, get_ple_mamba_state_shape_from_config.
    """
    tokens = tables.conv_state_tokens + options.num_speculative_tokens
    width = spec.hidden_size * (spec.streams.count if spec.streams else 1)
    return width * tokens * dtype_bytes(options.dtype)


def _layer_token_bytes(spec: ModelSpec, element_bytes: float, tensor_parallel_size: int, scale_bytes: int) -> int:
    heads = max(1, spec.num_key_value_heads // tensor_parallel_size)
    return 2 * heads * (int(spec.head_dim * element_bytes) + scale_bytes)
