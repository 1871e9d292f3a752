"""The stages of the library's loop, with runs of our own where all sequences decode (`run`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from qserve.engines.transformers.worker.attention.kernels import ChosenKernel
from qserve.engines.transformers.worker.batching.batcher import BatchLimits, Deliveries, GraphMemory
from qserve.engines.transformers.worker.batching.continuous import LibraryLoop
from qserve.engines.transformers.worker.batching.library_rows import LibraryRows
from qserve.engines.transformers.worker.batching.library_stages import LibraryStages, StepEntry
from qserve.engines.transformers.worker.batching.step_path import (
    COMPILED_LAYERS,
    DENSE_LAYERS,
    LIBRARY_LAYERS,
    StepPath,
)
from qserve.engines.transformers.worker.decoding.choose import choose_layers
from qserve.engines.transformers.worker.decoding.compiled import CompiledForwards, CompiledRun
from qserve.engines.transformers.worker.decoding.forward import Forwards
from qserve.engines.transformers.worker.decoding.run import DecodeRun
from qserve.engines.transformers.worker.sampling.batch import BatchSampler
from qserve.model.cpu.layers import CompiledLayers

__all__ = ["DecodingStages", "decodes_in_runs"]


def decodes_in_runs(model: Any, cache: Any) -> bool:
    """Whether steps of decoding are taken so: on a card, by layers that keep all keys in one tensor.

    On a CPU nobody waits for a device, and gathering pages costs more than the library's lists: there they are where
    the layers are compiled (`compiled`).
    """
    return model.device.type == "cuda" and LibraryRows.supports(cache)


def _why_not_captured(kernel: ChosenKernel, limits: BatchLimits) -> str:
    """Of steps that could be captured otherwise; empty where they are."""
    if not limits.captures:
        return "the plan has no memory for CUDA graphs"
    # A graph serves every length: so it would copy the keys of the longest sequences, however short those at hand are.
    return "" if kernel.is_in_place else "no kernel reads keys in their pages on this card"


class DecodingStages:
    """Puts runs between the library's own stages, which prefill, admit, preempt and share (`Stages`).

    A run begins where all that run have decoded and nothing has changed since; it ends when one of its sequences does,
    when somebody comes or leaves, when the loop is wanted for something else, or when the pool is full.
    """

    def __init__(
        self,
        library: LibraryLoop,
        original: LibraryStages,
        kernel: ChosenKernel,
        deliver: Callable[[Deliveries], None],
        *,
        limits: BatchLimits,
        layers: CompiledLayers | None = None,
    ) -> None:
        """`limits`: those of the batcher. `layers`: of a model on a CPU whose steps are one call."""
        self._library, self._original = library, original
        self._run_of: type[DecodeRun] = DecodeRun
        self._deliver = deliver
        self._books = LibraryRows(library.processor)
        cache = library.processor.cache
        self._forwards: Forwards | CompiledForwards
        if layers is not None:
            self._run_of, self._forwards = CompiledRun, CompiledForwards(library.model, layers, cache, self._books)
            self._chosen_path = StepPath(COMPILED_LAYERS)
        else:
            chosen = choose_layers(library.model)
            why_not = chosen.why_not_captured or _why_not_captured(kernel, limits)
            name = LIBRARY_LAYERS if chosen.dense is None else DENSE_LAYERS
            self._chosen_path = StepPath(name, why_not_captured=why_not, refused=chosen.refused)
            self._forwards = Forwards(
                library.model,
                cache,
                self._books,
                kernel,
                dense=chosen.dense,
                capture=None if why_not else chosen.capture,
                limits=limits,
            )
        self._sampler = BatchSampler()
        self._run: DecodeRun | None = None
        self._num_changes = -1
        self._decoded_alone = False
        if kernel.is_in_place and kernel.reads_prompts and layers is None:
            library.read_pages_by_table(kernel.read)

    @property
    def graph_memory(self) -> GraphMemory:
        """What captures have taken so far."""
        return self._forwards.graph_memory

    @property
    def step_path(self) -> StepPath:
        """How steps run, with the captures so far."""
        path, forwards = self._chosen_path, self._forwards
        if isinstance(forwards, CompiledForwards):
            return path
        if forwards.refused:
            path = replace(path, why_not_captured=forwards.refused[0].reason)
        return replace(
            path,
            is_captured=forwards.is_captured,
            num_captured=forwards.num_captured,
            refused=(*path.refused, *forwards.refused),
        )

    def prepare(self) -> bool:
        """Whether there is a step to take."""
        is_same = self._num_changes == self._library.num_changes and not self._library.is_wanted_elsewhere
        if self._run is None and is_same:
            self._run = self._begun()
        if self._run is not None:
            if is_same and self._run.can_go_on():
                return True
            run, self._run = self._run, None
            run.end()
        self._num_changes = self._library.num_changes
        return self._original.prepare()

    def step(self, model: Any) -> None:
        """Forward and draw."""
        if self._run is None:
            self._original.step(model)
        else:
            self._run.step()

    def update(self) -> None:
        """The library's books of its own step."""
        if self._run is None:
            self._decoded_alone = all(entry.num_tokens == 1 for entry in self._original.in_step())
            self._original.update()
        elif self._run.is_over:
            self._run, self._decoded_alone = None, False

    def in_step(self) -> list[StepEntry]:
        """See `Stages`."""
        if self._run is None:
            return self._original.in_step()
        return [StepEntry(sequence, 1, num_cached) for sequence, num_cached in self._run.in_step]

    def finish_run(self) -> None:
        """End a run: its tokens are told, and the library's books are written."""
        run, self._run = self._run, None
        if run is not None:
            run.end()

    def drop(self) -> None:
        """The library forgets all requests, and what was drawn and not taken is drawn again."""
        self._run, self._num_changes, self._decoded_alone = None, -1, False

    def _begun(self) -> DecodeRun | None:
        if self._books.has_waiting and not self._decoded_alone:
            return None
        rows = self._books.decoding()
        if rows is None:
            return None
        return self._run_of(self._forwards, self._books, rows, self._sampler, self._deliver)
