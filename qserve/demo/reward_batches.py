"""Rows of the reward model's training: a question and its answers in one row, where no answer sees another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer

from qserve.demo.preferences import Preference, conversation_text, sample_preference

__all__ = ["Batch", "batches", "encode", "stack"]

# Few lengths, so few shapes: oneDNN compiles its bf16 kernels once per shape.
_LENGTHS = (64, 96, 128, 192, 288)


@dataclass(frozen=True)
class Batch:
    """A row is a question and then its answers, the good one first; no answer sees another.

    `input_ids` and `position_ids` [rows, length]; `mask` [rows, 1, length, length], 0 where a token is seen; `last`
    [rows, answers], the index of each answer's last token; `labels` [rows, length]: at an answer's tokens 1 while it is
    as good as the good one and 0 from the first difference on, elsewhere -1.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    mask: torch.Tensor
    last: torch.Tensor
    labels: torch.Tensor


def batches(tokenizer: Tokenizer, seed: int, num_rejected: int, num_questions: int) -> Iterator[Batch]:
    """Batches without end, the same for the same seed, of questions that take about the same length.

    Each question comes with `num_rejected` bad answers; `num_questions` of medium length fill a batch.
    """
    rng = Random(f"{seed}:reward")  # noqa: S311 (data, not secrets)
    waiting: dict[int, list[Encoded]] = {length: [] for length in _LENGTHS}
    while True:
        encoded = encode(tokenizer, sample_preference(rng, num_rejected))
        length = next((length for length in _LENGTHS if encoded.num_tokens <= length), None)
        if length is None:
            continue
        rows = waiting[length]
        rows.append(encoded)
        if len(rows) == max(8, num_questions * _LENGTHS[1] // length):
            yield stack(rows, length)
            rows.clear()


@dataclass(frozen=True)
class Encoded:
    """Token ids of the question, and of each answer."""

    question: list[int]
    answers: list[list[int]]

    @property
    def num_tokens(self) -> int:
        return len(self.question) + sum(map(len, self.answers))


def encode(tokenizer: Tokenizer, preference: Preference) -> Encoded:
    """The question and its answers, the good one first."""
    texts = [
        conversation_text(preference.question, answer, preference.system)
        for answer in (preference.chosen, *preference.rejected)
    ]
    # A special token stands before every answer, so that no token spans the border.
    question = texts[0][: texts[0].rindex("assistant\n") + len("assistant\n")]
    ids = tokenizer.encode(question, add_special_tokens=False).ids
    whole = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    shared = min(_parted(row, ids) for row in whole)
    return Encoded(whole[0][:shared], [row[shared:] for row in whole])


def stack(rows: list[Encoded], length: int) -> Batch:
    """Rows of `length`, at least as long as each of them."""
    # Padding stands to the right; no answer sees it, and it is never read.
    input_ids = torch.zeros(len(rows), length, dtype=torch.long)
    position_ids = torch.zeros_like(input_ids)
    sees = torch.eye(length, dtype=torch.bool).repeat(len(rows), 1, 1)
    labels = torch.full((len(rows), length), -1.0)
    last = torch.zeros(len(rows), len(rows[0].answers), dtype=torch.long)
    for index, row in enumerate(rows):
        shared = len(row.question)
        input_ids[index, :shared] = torch.tensor(row.question)
        position_ids[index, :shared] = torch.arange(shared)
        sees[index, :shared, :shared] = torch.ones(shared, shared).tril() > 0
        start = shared
        for place, answer in enumerate(row.answers):
            stop, size = start + len(answer), len(answer)
            input_ids[index, start:stop] = torch.tensor(answer)
            position_ids[index, start:stop] = torch.arange(shared, shared + size)
            sees[index, start:stop, :shared] = True
            sees[index, start:stop, start:stop] = torch.ones(size, size).tril() > 0
            labels[index, start:stop] = 1
            labels[index, start + _parted(answer, row.answers[0]) : stop] = 0
            last[index, place] = stop - 1
            start = stop
    mask = torch.zeros(sees.shape).masked_fill(~sees, torch.finfo(torch.float32).min)[:, None]
    return Batch(input_ids, position_ids, mask, last, labels)


def _parted(row: list[int], other: list[int]) -> int:
    """Index of the first token that differs; the length of the shorter where there is none."""
    pairs = enumerate(zip(row, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(row), len(other)))
