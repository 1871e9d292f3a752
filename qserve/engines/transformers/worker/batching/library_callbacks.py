"""What the library calls: a logits processor that chooses every token, and where it leaves what has ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence, failure_of
from qserve.engines.transformers.worker.sampling.batch import BatchSampler, choose_tokens
from qserve.engines.transformers.worker.sampling.late import late_rows
from qserve.engines.transformers.worker.sampling.params import TokenChoice
from qserve.model.cpu.shortlist import ShortlistHead
from qserve.model.failures import SequenceFailed
from qserve.model.transfers import upload

__all__ = ["Deliver", "Outputs", "Sampling", "not_drawn", "sequence_of"]

Deliver = Callable[[Deliveries], None]


def sequence_of(state: Any) -> Sequence:
    """Ours, of a request of the library's."""
    sequence: Sequence = state.logit_processor_kwargs["sequence"]
    return sequence


@contextmanager
def not_drawn(requests: list[Any], late: Collection[Sequence], cache: Any) -> Iterator[None]:
    """Around the library's update of a step of `requests`, which notes a token for each that was read to its end.

    Of `late` ones it is taken back: their next steps read their last tokens again, at the same places.
    """
    futures = [one for one in requests if one.has_new_token and sequence_of(one.state) in late]
    for future in futures:
        state = future.state
        state._new_tokens_limit += 1
        for name, number in list(future.complete_blocks.items()):
            if state.position_offset % cache.cache_allocators[name].tokens_per_page == 0:
                # Its last key is written again: the block is not another's yet.
                future.complete_blocks[name] = number - 1
    yield
    for future in futures:
        state = future.state
        state._new_tokens_limit -= 1
        state.generated_tokens.pop()
        state.position_offset -= 1
        state.tokens_to_process = (state.generated_tokens or state.initial_tokens)[-1:]


class Sampling(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]  # transformers is untyped
    """Chooses a token for each row and tells its sequence; the argmax that follows finds the same one.

    Attributes:
        late: of the last step, sequences that nothing could be drawn for (`sampling.late`).
    """

    supported_kwargs: ClassVar[dict[str, type]] = {"sequence": Sequence}
    ignored_kwargs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, deliver: Deliver, head: Any) -> None:
        """`head`: the model's, which is told how many logits a step needs if it can do with fewer than all."""
        self._deliver = deliver
        self._head = head if isinstance(head, ShortlistHead) else None
        self._sampler = BatchSampler()
        self._rows: list[Sequence] = []
        self.late: list[Sequence] = []

    def around(self, step: Callable[[Any], None]) -> Callable[[Any], None]:
        """`step`, after which the head gives all logits to whoever asks it between two steps."""

        def with_head(model: Any) -> None:
            try:
                step(model)
            finally:
                if self._head is not None:
                    self._head.num_wanted = None

        return with_head

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        """The library keeps a tensor of arguments per processor; ours are Python objects, so it stays zero."""
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: Iterable[Any]) -> torch.Tensor:
        """Called before the step with the requests whose next token it yields, in the order of the logits' rows."""
        self._rows = [sequence_of(request.state) for request in requests_with_new_token]
        self.late = []
        if self._head is not None:
            wanted = [one.sampler.num_wanted for one in self._rows]
            self._head.num_wanted = None if None in wanted else max(filter(None, wanted), default=None)
        return torch.zeros(len(self._rows), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """`scores` [rows, vocab] float32; the chosen token of each row is lifted to plus infinity.

        For a late row it is one that ends nothing, which the library is made to forget (`not_drawn`).
        Rows behind those that have a next token are of prompts that are not read to their ends.
        """
        if not self._rows:
            return scores
        late = late_rows([one.sampler for one in self._rows], is_all=len(scores) == len(self._rows))
        self.late = [self._rows[row] for row in late]
        deliveries = choose_tokens(self._rows, scores[: len(self._rows)], self._sampler, late)
        drawn = iter(deliveries)
        chosen = [
            [_end_of_nothing(one) if row in late else _token_of(next(drawn))] for row, one in enumerate(self._rows)
        ]
        scores[: len(chosen)].scatter_(1, upload(chosen, torch.long, scores.device), float("inf"))
        self._deliver(deliveries)
        return scores


def _token_of(delivery: tuple[Sequence, TokenChoice | SequenceFailed]) -> int:
    return delivery[1].token_id if isinstance(delivery[1], TokenChoice) else 0


def _end_of_nothing(sequence: Sequence) -> int:
    return next(token for token in itertools.count() if token not in sequence.stop_token_ids)


class Outputs:
    """Where the library leaves what has ended. Our sequences hear of it token by token; only its failures are news."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver

    def deliver(self, output: Any) -> None:
        """Nobody reads it."""

    def deliver_batch(self, outputs: list[Any]) -> None:
        """Nobody reads them."""

    def fail_and_deliver(self, state: Any, error: Exception) -> None:
        """A request that the library gives up."""
        sequence = sequence_of(state)
        self._deliver([(sequence, failure_of(sequence, error))])
