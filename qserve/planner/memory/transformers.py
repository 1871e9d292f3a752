"""The transformers engine on the CPU: what a worker's resident memory is made of."""

from __future__ import annotations

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import dtype_bytes

__all__ = ["activation_bytes"]


def activation_bytes(spec: ModelSpec, dtype: str, num_tokens: int, num_logit_rows: int) -> int:
    """Peak of one step: the MLP of `num_tokens` tokens, and logits of the rows that are sampled.

    2·T·(3I + 4H) for 16-bit activations: gate, up and their product, beside the residual stream. Logits are held in
    the model's dtype and again in fp32.
    """
    size = dtype_bytes(dtype)
    body = size * num_tokens * (3 * spec.intermediate_size + 4 * spec.hidden_size)
    return body + num_logit_rows * spec.vocab_size * (size + 4)
