"""The library's books of sequences that decode in a run of our own: read at its begin, written at its end.

Between the two the library's scheduler stands still; its pages are the ones that are used. What it would have noted
after each step is noted at once: tokens, positions, and the blocks that others may share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers.generation.continuous_batching.requests import RequestStatus

from qserve.engines.transformers.worker.attention.pages import PagedKernel, PageStep
from qserve.engines.transformers.worker.batching.batcher import Sequence
from qserve.model.transfers import upload

__all__ = ["LibraryRow", "LibraryRows", "page_step_of"]


def page_step_of(requests: list[Any], cache: Any, arguments: dict[str, Any], kernel: PagedKernel) -> PageStep:
    """What attention reads and writes in a step of the library's, whose `arguments` for the model are made.

    `requests` are those in the step; they are as long by now as they are after it.
    """
    (allocator,) = cache.cache_allocators.values()
    pages_per_block = allocator.block_physical_stride // allocator.tokens_per_page
    lengths = [request.state.position_offset for request in requests]
    tables = [allocator.block_table[request.state.request_id] for request in requests]
    width = max(map(len, tables))
    device = arguments["input_ids"].device
    return PageStep(
        write_index=arguments["write_index"][allocator.index],
        block_table=upload(
            [[*(block * pages_per_block for block in table), *[0] * (width - len(table))] for table in tables],
            torch.int32,
            device,
        ),
        num_keys=upload(lengths, torch.int32, device),
        query_bounds=arguments["cu_seq_lens_q"],
        max_queries=arguments["max_length_q"],
        max_keys=max(lengths),
        kernel=kernel,
    )


def _is_read(state: Any) -> bool:
    """Whether all tokens of a request are cached but the last, which the next step reads."""
    return bool(state.position_offset + 1 == len(state.initial_tokens) + len(state.generated_tokens))


@dataclass(eq=False)
class LibraryRow:
    """A sequence that decodes. `position` is where its last token will lie; `blocks` are its own, in order."""

    sequence: Sequence
    state: Any
    blocks: list[int]
    position: int
    begun_at: int
    num_sampled_before: int

    @property
    def last_token(self) -> int:
        """What the next forward reads of it: of its prompt where nothing could be drawn yet."""
        return (self.sequence.sampled_ids or self.sequence.prompt_ids)[-1]

    @property
    def reads_prompt(self) -> bool:
        """Whether its last token is one of its prompt."""
        return bool(self.position < len(self.state.initial_tokens))


class LibraryRows:
    """Of a cache with one allocator, which keeps all keys (`supports`)."""

    def __init__(self, processor: Any) -> None:
        self._scheduler, self._cache = processor.scheduler, processor.cache
        ((self._name, self._allocator),) = self._cache.cache_allocators.items()
        self.page_tokens: int = self._allocator.tokens_per_page
        self._pages_per_block: int = self._allocator.block_physical_stride // self.page_tokens
        self.scratch_page: int = self._allocator.write_trash_index // self.page_tokens

    @staticmethod
    def supports(cache: Any) -> bool:
        """Whether every layer keeps all keys in the one tensor of `cache`."""
        allocators = list(cache.cache_allocators.values())
        return (
            len(allocators) == 1
            and allocators[0].layer_type == "full_attention"
            and cache.cache_tensor.device.type != "meta"  # `layer_cache`
        )

    def max_pages(self, max_model_len: int | None) -> int:
        """Of one sequence of so many tokens, the page ahead of its last included; never more than there are."""
        num_pages = int(self._cache.num_blocks)
        return num_pages if max_model_len is None else min(num_pages, -(-max_model_len // self.page_tokens) + 1)

    @property
    def has_waiting(self) -> bool:
        """Whether some wait for a place."""
        return bool(self._scheduler.waiting_requests)

    def decoding(self) -> list[LibraryRow] | None:
        """All that run, where each has nothing left of its prompt to read; else None."""
        states = list(self._scheduler.active_requests.values())
        if not states or self._scheduler.starved_requests:
            return None
        if any(
            state.status != RequestStatus.DECODING or len(state.tokens_to_process) != 1 or not _is_read(state)
            for state in states
        ):
            return None
        return [self._row(state) for state in states]

    def _row(self, state: Any) -> LibraryRow:
        sequence: Sequence = state.logit_processor_kwargs["sequence"]
        position = int(state.position_offset)
        blocks = self._allocator.block_table[state.request_id]
        return LibraryRow(sequence, state, blocks, position, position, len(sequence.sampled_ids))

    def pages(self, row: LibraryRow) -> list[int]:
        """Numbers of its pages, as `layer` has them."""
        return [block * self._pages_per_block for block in row.blocks]

    def grow(self, row: LibraryRow) -> tuple[int, int] | None:
        """A block more: (place in its table, page). None: the pool is full."""
        row.state.position_offset = row.position
        if not self._cache.can_store_request_tokens(row.state, 1):
            return None
        return len(row.blocks) - 1, row.blocks[-1] * self._pages_per_block

    def write_back(self, row: LibraryRow) -> None:
        """The run is over for it: it goes on in the library's steps, or its pages are free."""
        state, drawn = row.state, row.sequence.sampled_ids[row.num_sampled_before :]
        state.generated_tokens.extend(drawn)
        state.position_offset = row.position
        if drawn:
            state.tokens_to_process = drawn[-1:]
        num_complete = row.position // self.page_tokens - row.begun_at // self.page_tokens
        if num_complete and self._cache.use_prefix_sharing:
            self._cache.mark_complete_blocks(state, {self._name: num_complete})
        if row.sequence.is_complete:
            state.status = RequestStatus.FINISHED
            self._scheduler.finish_request(state.request_id)
            self._scheduler.block_new_requests = False
