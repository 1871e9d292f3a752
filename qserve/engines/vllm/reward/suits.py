"""Which reward models vLLM's pooling runner scores as they were trained, and why it would not the others."""

from __future__ import annotations

from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.settings import RewardSettings

__all__ = ["why_not"]


def why_not(checkpoint: RewardCheckpoint, settings: RewardSettings) -> str | None:
    """In a sentence, what stands against it; None where nothing does.

    vLLM recognises a classifier of one label by its class and `score.weight`, and reads it at the last token that it is
    sent, which is the one where transformers' class reads (`VllmScorer`).
    """
    own = f"{checkpoint.id} is served by qserve's own scorer; leave --reward-engine vllm out"
    if checkpoint.recipe is not None:
        return f"{checkpoint.id} combines parts, which qserve's own worker scores; leave --reward-engine vllm out"
    if checkpoint.format != "sequence-classification":
        return (
            f"vLLM would not score a {checkpoint.format} checkpoint as it was trained: it supports only a head named "
            f"score, with one label, in a whole sequence-classification checkpoint. {own}"
        )
    if settings.answer_tokens is not None:
        return f"--answer-tokens is for rerankers. {own}"
    if checkpoint.head.has_bias:
        return f"vLLM's classifiers have no bias, and {checkpoint.head.prefix} has one. {own}"
    if not checkpoint.path.is_dir() or checkpoint.body_prefix != "model.":
        return f"vLLM needs a folder with config, weights (model.*) and tokenizer. {own}"
    pooling = settings.pooling or checkpoint.pooling
    if pooling not in ("last", "not-pad"):
        return f"vLLM reads a classifier at the last token, but --pooling {pooling} reads another place. {own}"
    return None
