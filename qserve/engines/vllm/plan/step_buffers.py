"""What sparse attention, residual streams and tables of n-grams hold of a step's tokens in vLLM.

Source: vllm 0.32 models/qwen4_exp/nvidia (qsa.py, model.py, hyperconnection.py, ngram_embedding.py).
"""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor, dtype_bytes

__all__ = ["choice_bytes", "draft_streams_bytes", "lookup_bytes", "stream_widths"]

_ACTIVATION_BYTES = 2
_ROW_BYTES = 8  # a row's number


def choice_bytes(spec: ModelSpec, num_tokens: int, drafts: bool = False) -> int:
    """Numbers of the tokens that each token attends to, and how many: int32, in a buffer of every layer that chooses.

    Of all layers together, made with the model and whole on every rank. `drafts`: of the MTP head's layers, too.
    """
    if spec.index is None:
        return 0
    layers = spec.num_full_layers + (spec.mtp_layers if drafts else 0)
    return layers * num_tokens * (spec.index.chosen_tokens + 1) * 4


def draft_streams_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """All streams of a step, kept for an MTP head; 0 where there are none."""
    return num_tokens * spec.streams.count * spec.hidden_size * _ACTIVATION_BYTES if spec.streams else 0


def lookup_bytes(spec: ModelSpec, tensors: tuple[Tensor, ...], dtype: str, num_tokens: int) -> int:
    """Rows of tables that lie in RAM, fetched one layer ahead, and their numbers: buffers made in the profile run."""
    tables = spec.ngrams
    if tables is None:
        return 0
    stored = next((one.dtype for one in tensors if one.role == "ngram_table" and one.nbytes > _ROW_BYTES), dtype)
    element = 1 if stored.startswith(("F8", "float8")) else dtype_bytes(dtype)
    return len(tables.layers) * num_tokens * (tables.embed_dim * element + tables.num_heads * _ROW_BYTES)


def stream_widths(spec: ModelSpec, block_widths: int) -> int:
    """Elements per token at the peak of a layer with several streams, whose attention or MLP takes `block_widths`.

    While the second half's gate mixes there are five times all streams: the state that the model's loop names, that of
    the first half, the sum with what attention returned, the same normed, and the gate; and three of one width. While
    a block computes there are two times all streams, and what it is given.
    """
    if spec.streams is None:
        return block_widths
    width = spec.streams.count * spec.hidden_size
    return max(5 * width + 3 * spec.hidden_size, 2 * width + spec.hidden_size + block_widths)
