"""What requests do to their rows of logits before a token is drawn, in vLLM's order; all rows at once, on the device.

Bias first, so that a repetition penalty meets biased logits; then penalties, `min_tokens`, and what a grammar allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from qserve.engines.transformers.worker.sampling.penalties import SeenTokens
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.transfers import upload, upload_bytes

__all__ = ["Adjustment", "is_allowed", "likeliest_allowed"]

_LOWEST = float("-inf")


@cache
def _added_by_byte(device: torch.device) -> torch.Tensor:
    """float32 [256, 8]: what each byte of a mask adds to the scores of its eight tokens, zero or minus infinity."""
    # Made where it is read: a table that is sent would be waited for, in the middle of a step.
    allowed = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    return torch.where(allowed.bool(), 0.0, _LOWEST)


def is_allowed(token_id: int, mask: bytes) -> bool:
    """Whether the token's bit is set in `mask`."""
    return token_id // 8 < len(mask) and bool(mask[token_id // 8] >> token_id % 8 & 1)


def likeliest_allowed(scores: NDArray[np.float32], likeliest: int, mask: bytes) -> int:
    """The likeliest token of `scores` [vocab] that `mask` allows, where `likeliest` is that of them all."""
    if is_allowed(likeliest, mask):
        return likeliest
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=len(scores), bitorder="little")
    return int(np.where(bits, scores, _LOWEST).argmax())


class Adjustment:
    """Of the rows of a batch, until other sequences stand in it or `min_tokens` are there."""

    def __init__(self, samplers: Sequence[SequenceSampler], vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._kept: torch.Tensor | None = None
        self._added: NDArray[np.float32] | None = None
        self._penalised = [row for row, one in enumerate(samplers) if one.params.is_penalised]
        self._too_short = [row for row, one in enumerate(samplers) if one.is_too_short]
        self._biases = self._pairs(
            (row, token, bias) for row, one in enumerate(samplers) for token, bias in one.params.logit_bias.items()
        )
        self._ends = self._pairs(
            (row, token, _LOWEST) for row in self._too_short for token in samplers[row].params.stop_token_ids
        )
        if self._penalised:
            self._penalties = upload(
                [
                    [one.repetition_penalty, one.frequency_penalty, one.presence_penalty]
                    for one in (samplers[row].params for row in self._penalised)
                ],
                torch.float32,
                device,
            )
            self._penalised_rows = upload(self._penalised, torch.long, device)

    def _pairs(self, entries: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
        """(row, token, value) as three tensors."""
        found = list(entries)  # type: ignore[call-overload]
        if not found:
            return None
        rows, tokens, values = zip(*found, strict=True)
        where = upload([rows, tokens], torch.long, self._device)
        return where[0], where[1], upload(values, torch.float32, self._device)

    def __call__(
        self, logits: torch.Tensor, samplers: Sequence[SequenceSampler], seen: SeenTokens, masks: Mapping[int, bytes]
    ) -> torch.Tensor:
        """`logits` [rows, vocab] float32 as they are to be drawn from; themselves where nothing changes them.

        `masks`: which tokens the grammars of some rows allow, one bit each. Valid until the next call.
        """
        if not (self._penalised or self._biases or self._ends or masks):
            return logits
        adjusted = self._copy_of(logits)
        if self._biases is not None:
            rows, tokens, values = self._biases
            adjusted[rows, tokens] += values
        if self._penalised:
            self._penalise(adjusted, samplers, seen)
        if self._ends is not None:
            rows, tokens, values = self._ends
            adjusted[rows, tokens] = values
        if masks:
            bind = self._bind_on_host if self._device.type == "cpu" else self._bind
            bind(adjusted, logits, masks)
        return adjusted

    def _copy_of(self, logits: torch.Tensor) -> torch.Tensor:
        """On a CPU in memory that is kept: a fresh page costs several times what filling it does."""
        if self._device.type != "cpu":
            return logits.clone()
        if self._kept is None or self._kept.shape != logits.shape:
            self._kept = torch.empty_like(logits, memory_format=torch.contiguous_format)
        return self._kept.copy_(logits)

    def _penalise(self, adjusted: torch.Tensor, samplers: Sequence[SequenceSampler], seen: SeenTokens) -> None:
        repetition, frequency, presence = self._penalties.T[:, :, None]
        counts, in_prompt = seen.of([samplers[row] for row in self._penalised], adjusted.shape[1], self._device)
        drawn = counts > 0
        rows = adjusted[self._penalised_rows]
        repeated = torch.where(rows > 0, rows / repetition, rows * repetition)
        rows = torch.where(drawn | in_prompt, repeated, rows)
        rows = rows - frequency * counts - presence * drawn
        adjusted.index_copy_(0, self._penalised_rows, rows)

    def _bind(self, adjusted: torch.Tensor, logits: torch.Tensor, masks: Mapping[int, bytes]) -> None:
        """What grammars forbid becomes minus infinity: by a table of bytes, in three launches."""
        vocab_size = adjusted.shape[1]
        width = -(-vocab_size // 8)
        packed = upload_bytes([mask[:width].ljust(width, b"\0") for mask in masks.values()], self._device)
        added = _added_by_byte(self._device).index_select(0, packed.flatten().int())
        added = added.view(len(masks), -1)[:, :vocab_size]
        index = upload(list(masks), torch.long, self._device)
        adjusted.index_add_(0, index, added)
        if any(row in self._too_short for row in masks):
            # A structure that is complete before `min_tokens` are there can only end.
            rows = adjusted[index]
            has_none = torch.isneginf(rows).all(dim=-1, keepdim=True)
            adjusted.index_copy_(0, index, torch.where(has_none, logits[index] + added, rows))

    def _bind_on_host(self, adjusted: torch.Tensor, logits: torch.Tensor, masks: Mapping[int, bytes]) -> None:
        """The same in place, a row after the other, by one core, in memory that is kept.

        By bytes as well: NumPy's writes under a mask of bits take five times as long where the bits are mixed.
        """
        rows, vocab_size = adjusted.numpy(), adjusted.shape[1]
        width = -(-vocab_size // 8)
        if self._added is None or len(self._added) != width:
            self._added = np.empty((width, 8), np.float32)
        added, by_byte = self._added.reshape(-1)[:vocab_size], _added_by_byte(self._device).numpy()
        for row, mask in masks.items():
            packed = np.frombuffer(mask[:width].ljust(width, b"\0"), np.uint8)
            by_byte.take(packed, axis=0, out=self._added, mode="clip")
            rows[row] += added
            if row in self._too_short and np.isneginf(rows[row]).all():
                np.add(logits[row].numpy(), added, out=rows[row])
