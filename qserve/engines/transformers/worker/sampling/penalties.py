"""How often each token of the vocabulary was drawn, for the sequences whose penalties ask: kept on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.transfers import upload

__all__ = ["SeenTokens"]


class SeenTokens:
    """A row of counts and a row of prompt tokens for each sampler that stood in one of the last draws.

    What the samplers have drawn is the truth: a row that is behind is brought up to it, one that is gone made anew.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}  # by serial number
        self._num_counted: list[int] = []
        self._counts: torch.Tensor | None = None
        self._in_prompt: torch.Tensor | None = None

    def of(
        self, samplers: Sequence[SequenceSampler], vocab_size: int, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Counts of what was drawn [samplers, vocab] float32, and whether a token is in the prompt, bool."""
        self._allot([one.serial for one in samplers], vocab_size, device)
        rows = [self._rows[one.serial] for one in samplers]
        assert self._counts is not None
        assert self._in_prompt is not None
        new = [row for row in rows if self._num_counted[row] < 0]
        if new:
            self._begin([one for one, row in zip(samplers, rows, strict=True) if row in new], new, device)
        pairs = [
            (row, token)
            for one, row in zip(samplers, rows, strict=True)
            for token in one.drawn[self._num_counted[row] :]
        ]
        if pairs:
            where = upload(list(zip(*pairs, strict=True)), torch.long, device)
            one = torch.ones((), dtype=self._counts.dtype, device=device)
            self._counts.index_put_((where[0], where[1]), one, accumulate=True)
        for sampler, row in zip(samplers, rows, strict=True):
            self._num_counted[row] = len(sampler.drawn)
        index = upload(rows, torch.long, device)
        return self._counts[index], self._in_prompt[index]

    def _allot(self, serials: list[int], vocab_size: int, device: torch.device) -> None:
        """A row for each: those of others are taken, and the table grows where there are too few."""
        missing = [serial for serial in serials if serial not in self._rows]
        if not missing:
            return
        wanted = set(serials)
        self._rows = {serial: row for serial, row in self._rows.items() if serial in wanted}
        if self._counts is None or len(self._counts) < len(serials):
            # Its rows are made anew of what was drawn: growing is seldom.
            size = 1 << (len(serials) - 1).bit_length()
            self._counts = torch.zeros(size, vocab_size, device=device)
            self._in_prompt = torch.zeros(size, vocab_size, dtype=torch.bool, device=device)
            self._rows, self._num_counted, missing = {}, [-1] * size, serials
        free = iter(sorted(set(range(len(self._counts))) - set(self._rows.values())))
        for serial in missing:
            self._rows[serial] = row = next(free)
            self._num_counted[row] = -1

    def _begin(self, samplers: Sequence[SequenceSampler], rows: list[int], device: torch.device) -> None:
        """Rows that nothing is counted in yet."""
        assert self._counts is not None
        assert self._in_prompt is not None
        index = upload(rows, torch.long, device)
        self._counts.index_fill_(0, index, 0.0)
        self._in_prompt.index_fill_(0, index, False)
        pairs = [(row, token) for one, row in zip(samplers, rows, strict=True) for token in set(one.prompt_ids)]
        if pairs:
            where = upload(list(zip(*pairs, strict=True)), torch.long, device)
            # By a tensor on the device: Python's True would be brought there, and the copy waited for.
            yes = torch.ones((), dtype=torch.bool, device=device)
            self._in_prompt.index_put_((where[0], where[1]), yes)
        for row in rows:
            self._num_counted[row] = 0
