"""What stays on the device while the same sequences decode, and is updated there from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from qserve.engine.transformers.transfers import upload

__all__ = ["DecodeBuffers"]


@dataclass(frozen=True)
class DecodeBuffers:
    """Rows of a batch; those behind the sequences (`num_rows` of them) fill it up and write to a page of nobody.

    Attributes:
        tokens: int64 [rows], what the next forward reads.
        positions: int64 [rows], where.
        block_table: int32 [rows, pages].
        advance: int64 [rows], one for a sequence, zero for a row that fills up.
        query_bounds: int32 [rows + 1].
        num_rows: sequences.
        page_tokens: of a page.

    """

    tokens: torch.Tensor
    positions: torch.Tensor
    block_table: torch.Tensor
    advance: torch.Tensor
    query_bounds: torch.Tensor
    num_rows: int
    page_tokens: int

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        positions: Sequence[int],
        tables: Sequence[Sequence[int]],
        *,
        num_rows: int,
        num_pages: int,
        page_tokens: int,
        nobodys_page: int,
        device: torch.device,
    ) -> DecodeBuffers:
        """For sequences with these last tokens, their positions and pages; `num_rows` and `num_pages` of the batch."""
        used, more = len(tokens), num_rows - len(tokens)
        numbers = upload(
            [[*tokens, *[0] * more], [*positions, *[0] * more], [*[1] * used, *[0] * more]], torch.long, device
        )
        table = [[*row, *[nobodys_page] * (num_pages - len(row))] for row in tables]
        table += [[nobodys_page] * num_pages] * more
        return cls(
            tokens=numbers[0],
            positions=numbers[1],
            block_table=upload(table, torch.int32, device),
            advance=numbers[2],
            query_bounds=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            num_rows=used,
            page_tokens=page_tokens,
        )

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

    def move_on(self, tokens: torch.Tensor) -> None:
        """The forward has read its tokens, and these [num_rows] were drawn."""
        self.tokens[: self.num_rows].copy_(tokens)
