"""Sampled conversations as batches of near-equal length, and exact match on held-out ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from qserve.demo.calling import Calling, sample_calling
from qserve.demo.conversations import Conversation, sample_conversation

__all__ = ["IGNORED", "Batch", "answer_logits", "exact_matches", "training_batches"]

IGNORED = -100
# Few lengths, so few shapes: oneDNN compiles its bf16 kernels once per shape.
LENGTHS = (32, 48, 64, 96, 128, 160, 192)

Encoded = tuple[list[int], list[int]]


@dataclass(frozen=True)
class Batch:
    """`input_ids` and `labels`, both [rows, length]; labels are shifted already, IGNORED where nothing is learned."""

    input_ids: torch.Tensor
    labels: torch.Tensor


def encode(tokenizer: Tokenizer, conversation: Conversation | Calling) -> Encoded:
    """Token ids of a conversation and the label of each position: the next token where an answer is spoken."""
    ids: list[int] = []
    targets: list[int] = []
    for text, spoken in conversation.pieces():
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        targets += piece if spoken else [IGNORED] * len(piece)
    return ids[:-1], targets[1:]


def training_batches(
    tokenizer: Tokenizer,
    tokens_per_batch: int,
    seed: int,
    weights: Mapping[str, float] | None = None,
    calling_share: float = 0.0,
) -> Iterator[Batch]:
    """Batches without end, the same for the same seed: of one of `LENGTHS` and about `tokens_per_batch` tokens each.

    `calling_share` of the conversations have a tool at hand.
    """
    rng = Random(seed)  # noqa: S311 (data, not secrets)
    waiting: dict[int, list[Encoded]] = {length: [] for length in LENGTHS}
    while True:
        calls = calling_share and rng.random() < calling_share
        ids, targets = encode(tokenizer, sample_calling(rng) if calls else sample_conversation(rng, weights))
        length = next((length for length in LENGTHS if len(ids) <= length), None)
        if length is None:
            continue
        rows = waiting[length]
        rows.append((ids, targets))
        if len(rows) == tokens_per_batch // length:
            yield _stack(rows, length)
            rows.clear()


def _stack(rows: list[Encoded], length: int) -> Batch:
    # Padding stands to the right of a causal model and is never a label, so no attention mask is needed.
    input_ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), IGNORED)
    for row, (ids, targets) in enumerate(rows):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        labels[row, : len(targets)] = torch.tensor(targets)
    return Batch(input_ids, labels)


def answer_logits(model: Qwen3ForCausalLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [answers, vocab] in fp32 and labels [answers], only where an answer is spoken."""
    spoken = batch.labels != IGNORED
    hidden = model.model(input_ids=batch.input_ids, use_cache=False).last_hidden_state
    return model.lm_head(hidden[spoken]).float(), batch.labels[spoken]


@torch.inference_mode()
def exact_matches(
    model: Qwen3ForCausalLM, conversations: Sequence[Conversation | Calling], tokenizer: Tokenizer
) -> list[bool]:
    """Whether greedy decoding gives each answer exactly.

    One forward pass tells: greedy decoding follows the right answer as long as every next token is the likeliest one.
    """
    encoded = [encode(tokenizer, conversation) for conversation in conversations]
    right: list[bool] = []
    for start in range(0, len(encoded), 64):
        rows = encoded[start : start + 64]
        batch = _stack(rows, max(len(ids) for ids, _ in rows))
        logits, labels = answer_logits(model, batch)
        agrees = torch.ones_like(batch.labels, dtype=torch.bool)
        agrees[batch.labels != IGNORED] = logits.argmax(-1) == labels
        right += agrees.all(-1).tolist()
    return right
