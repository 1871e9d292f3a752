"""Computes a row: splits it if memory runs out, and isolates failures to single texts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

import torch

from qserve.model.failures import NOT_A_NUMBER, SequenceFailed
from qserve.model.out_of_memory import OutOfMemory, free_what_failed, is_broken_device, is_out_of_memory
from qserve.reward.items import ScorerStats
from qserve.reward.load import LoadedReward
from qserve.reward.scoring.forward import PooledText, forward_packed, forward_padded, row_padding
from qserve.reward.scoring.rows import Group

__all__ = ["RowComputer", "ScorerStats"]

_log = logging.getLogger("qserve.worker")

Output = torch.Tensor | SequenceFailed
"""The head's output [positions, labels] of one text, or why there is none."""


class RowComputer:
    """Runs rows through a model; rows of several threads may run at once."""

    def __init__(self, loaded: LoadedReward) -> None:
        self.stats = ScorerStats()
        self._loaded = loaded
        self._stats_lock = threading.Lock()
        self.on_row: Callable[[], None] = lambda: None
        """Called after each row, by the thread that computed it."""

    def compute(
        self, row: Sequence[Group], texts: Sequence[PooledText], *, is_last_try: bool = False
    ) -> dict[int, Output]:
        """By member of `row`, its output. Raises only what a broken card reports: nothing can be computed any more.

        A row that fails is divided until the text at fault is alone. It is tried once more (`is_last_try`), since the
        fault may not come back; not so where memory ran out.
        """
        members = [member for group in row for member in group.members]
        try:
            return {member: _finite(output) for member, output in self._forward(row, texts).items()}
        except Exception as error:
            if is_broken_device(error):
                raise
            failure = _failure(error, row)
            if is_last_try and not isinstance(failure, OutOfMemory):
                _log.exception("a text can't be scored")
        if len(members) == 1:
            if is_last_try or isinstance(failure, OutOfMemory):
                return {members[0]: failure}
            return self.compute(row, texts, is_last_try=True)
        if isinstance(failure, OutOfMemory):
            free_what_failed()
            with self._stats_lock:
                self.stats.num_out_of_memory += 1
        else:
            _log.warning("a row of %d texts failed (%s); computing them in halves", len(members), failure)
        first, second = _halves(row)
        return self.compute(first, texts) | self.compute(second, texts)

    def count_item(self, num_tokens: int, truncated: bool) -> None:
        """One text that got its score."""
        with self._stats_lock:
            self.stats.num_items += 1
            self.stats.num_tokens += num_tokens
            self.stats.num_truncated += truncated

    def _forward(self, row: Sequence[Group], texts: Sequence[PooledText]) -> dict[int, torch.Tensor]:
        began_s = time.perf_counter()
        if self._loaded.packs:
            outputs = forward_packed(self._loaded, row, texts)
        else:
            outputs = forward_padded(self._loaded, [member for group in row for member in group.members], texts)
        self._count_row(row, time.perf_counter() - began_s)
        return outputs

    def _count_row(self, row: Sequence[Group], seconds: float) -> None:
        lengths = [length for group in row for length in group.lengths]
        num_tokens = sum(group.num_tokens for group in row)
        packs = self._loaded.packs
        padded = row_padding(self._loaded, num_tokens) if packs else max(lengths) * len(lengths) - sum(lengths)
        self.on_row()
        with self._stats_lock:
            stats = self.stats
            stats.num_rows += 1
            stats.busy_s += seconds
            stats.rows_of_items[len(lengths)] = stats.rows_of_items.get(len(lengths), 0) + 1
            stats.num_padding_tokens += padded
            stats.num_computed_tokens += num_tokens + padded


def _failure(error: Exception, row: Sequence[Group]) -> SequenceFailed:
    if is_out_of_memory(error):
        return OutOfMemory.while_doing(f"scoring {sum(group.num_tokens for group in row)} tokens", error)
    return error if isinstance(error, SequenceFailed) else SequenceFailed(f"scoring failed: {error}")


def _finite(output: torch.Tensor) -> Output:
    return output if bool(torch.isfinite(output).all()) else SequenceFailed(NOT_A_NUMBER)


def _halves(row: Sequence[Group]) -> tuple[Sequence[Group], Sequence[Group]]:
    if len(row) > 1:
        return row[: len(row) // 2], row[len(row) // 2 :]
    group, middle = row[0], len(row[0].members) // 2
    return (
        (Group(group.shared, group.members[:middle], group.lengths[:middle]),),
        (Group(group.shared, group.members[middle:], group.lengths[middle:]),),
    )
