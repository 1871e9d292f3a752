"""What stays on the device while the same sequences decode, and is updated there from step to step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch

from qserve.model.transfers import upload

__all__ = ["DecodeBuffers"]


@dataclass(frozen=True, eq=False)
class DecodeBuffers:
    """Rows of a batch; those behind the sequences pad it and write to a scratch page.

    The tensors are the same from run to run, so that a captured forward finds what it reads.

    Attributes:
        tokens: int64 [rows], what the next forward reads.
        positions: int64 [rows], where.
        block_table: int32 [rows, pages].
        advance: int64 [rows], one for a sequence, zero for padding.
        query_bounds: int32 [rows + 1].
        page_tokens: of a page.
        scratch_page: what padding writes to; no sequence reads it.

    """

    tokens: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    advance: torch.Tensor
    query_bounds: torch.Tensor
    page_tokens: int
    scratch_page: int

    @classmethod
    def of(
        cls, num_rows: int, num_pages: int, page_tokens: int, scratch_page: int, device: torch.device
    ) -> DecodeBuffers:
        """Nothing but padding."""
        return cls(
            tokens=torch.zeros(num_rows, dtype=torch.long, device=device),
            positions=torch.zeros(num_rows, dtype=torch.long, device=device),
            block_table=torch.full((num_rows, num_pages), scratch_page, dtype=torch.int32, device=device),
            advance=torch.zeros(num_rows, dtype=torch.long, device=device),
            query_bounds=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            page_tokens=page_tokens,
            scratch_page=scratch_page,
        )

    def first(self, num_rows: int, num_pages: int) -> DecodeBuffers:
        """The same memory, of so many rows and pages; what it held is no longer anybody's."""
        return replace(
            self,
            tokens=self.tokens[:num_rows],
            positions=self.positions[:num_rows],
            block_table=self.block_table[:num_rows, :num_pages],
            advance=self.advance[:num_rows],
            query_bounds=self.query_bounds[: num_rows + 1],
        )

    def fill(self, tokens: Sequence[int], positions: Sequence[int], tables: Sequence[Sequence[int]]) -> None:
        """For sequences with these last tokens, their positions and pages."""
        num_rows = len(self.tokens)
        num_pages = max(map(len, tables), default=1)  # what is behind them is not read
        more = [0] * (num_rows - len(tokens))
        numbers = upload(
            [[*tokens, *more], [*positions, *more], [*[1] * len(tokens), *more]], torch.long, self.tokens.device
        )
        for buffer, values in zip((self.tokens, self.positions, self.advance), numbers, strict=True):
            buffer.copy_(values)
        table = [[*row, *[self.scratch_page] * (num_pages - len(row))] for row in tables]
        table += [[self.scratch_page] * num_pages] * len(more)
        self.block_table[:, :num_pages].copy_(upload(table, torch.int32, self.tokens.device))

    def write_index(self) -> torch.Tensor:
        """Where each row's new key lies, int64 [rows]."""
        pages = self.block_table.gather(1, (self.positions // self.page_tokens)[:, None])[:, 0]
        return pages.long() * self.page_tokens + self.positions % self.page_tokens

    def num_keys(self) -> torch.Tensor:
        """Keys of each row in the next forward, int32 [rows]."""
        return (self.positions + 1).int()

    def set_pages(self, new: Sequence[tuple[int, int, int]]) -> None:
        """(row, place in its table, page) of pages that were added."""
        rows, places, pages = upload(list(zip(*new, strict=True)), torch.long, self.block_table.device)
        self.block_table[rows, places] = pages.int()

    def move_on(self, tokens: torch.Tensor, late: Collection[int] = ()) -> None:
        """The forward has read its tokens, and these, of the first rows, were drawn: but for those of `late` rows.

        These read theirs again.
        """
        if late:
            index = upload(sorted(late), torch.long, tokens.device)
            tokens = tokens.index_copy(0, index, self.tokens[index])
            self.positions[index] -= 1
        self.tokens[: len(tokens)].copy_(tokens)
