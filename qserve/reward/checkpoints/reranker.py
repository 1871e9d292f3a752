"""Rerankers that are causal models: the log-odds of "yes" against "no" as the next token, as Qwen3-Reranker has them.

The difference of two rows of the language-model head is a head of one label, so nothing else of it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qserve.errors import BrokenCheckpoint, UsageError
from qserve.reward.checkpoints.describe import HeadLayer, RewardHead, StoredTensor

__all__ = ["TEMPLATE", "answer_tokens", "reranker_head"]

TEMPLATE = "rerankers/qwen3.jinja"
"""Below configs/: query and document as Qwen3-Reranker was trained to read them."""
_QWEN3 = ("yes", "no")
_HEADS = ("lm_head.weight", "embed_tokens.weight")


def answer_tokens(asked: str | None, config: Mapping[str, Any], name: str) -> tuple[str, str] | None:
    """The texts of the token for and the token against; None where the checkpoint is not a reranker.

    What the user asks for goes first; then vLLM's `classifier_from_token` (against, for) in config.json; then the name
    of a causal model that says it. Raises UsageError for anything but two words.
    """
    if asked is not None:
        words = [word.strip() for word in asked.split(",")]
        if len(words) != 2 or not all(words) or words[0] == words[1]:
            raise UsageError(f"--answer-tokens {asked!r}: name two tokens, the one for first, for example yes,no")
        return words[0], words[1]
    listed = config.get("classifier_from_token")
    if isinstance(listed, list) and len(listed) == 2:
        return str(listed[1]), str(listed[0])
    causal = any(str(one).endswith("ForCausalLM") for one in config.get("architectures") or ())
    return _QWEN3 if causal and "reranker" in name.lower() else None


def reranker_head(tensors: Sequence[StoredTensor], answer_ids: tuple[int, int], where: str) -> RewardHead:
    """The head that the two rows make. Raises BrokenCheckpoint without a language-model head or embedding."""
    for name in _HEADS:
        found = next((tensor for tensor in tensors if tensor.name.endswith(name)), None)
        if found is not None:
            if max(answer_ids) >= found.shape[0]:
                raise BrokenCheckpoint(f"{where}: {found.name} has {found.shape[0]} rows, and no row {max(answer_ids)}")
            prefix = found.name.removesuffix(".weight")
            return RewardHead(prefix, (HeadLayer(found, None),), answer_ids)
    raise BrokenCheckpoint(f"{where} has neither lm_head.weight nor an embedding, of which a reranker reads two rows")
