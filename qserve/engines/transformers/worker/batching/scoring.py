"""The queue before `prompt_logprobs`: requests of all clients share rows, and generation goes on between the rows."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from qserve.engines.transformers.worker.batching.batcher import Batcher
from qserve.engines.transformers.worker.batching.prompt_logprobs import (
    PromptToScore,
    ScoredPrompt,
    can_pack,
    pack,
    score_prompts,
)
from qserve.model.failures import SequenceFailed
from qserve.model.mapped import return_large_blocks
from qserve.model.out_of_memory import OutOfMemory, free_what_failed, is_broken_device, is_out_of_memory

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PromptScorer"]

_log = logging.getLogger("qserve.worker")
_Job = tuple[PromptToScore, "asyncio.Future[ScoredPrompt]"]


class PromptScorer:
    """A thread that scores prompts while the batcher holds still, one row at a time."""

    def __init__(
        self, model: PreTrainedModel, batcher: Batcher, loop: asyncio.AbstractEventLoop, max_num_batched_tokens: int
    ) -> None:
        self._on_death: Callable[[BaseException], None] = lambda error: None
        self._model = model
        self._batcher = batcher
        self._loop = loop
        # A row of one token holds no two prompts.
        self._row_tokens = max_num_batched_tokens if can_pack(model) else 1
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="prompt-scorer", daemon=True)

    def start(self, on_death: Callable[[BaseException], None] | None = None) -> None:
        """Start the thread. `on_death` is called from it where a card reported an error: only a new process helps."""
        if on_death is not None:
            self._on_death = on_death
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the row it is at."""
        self._jobs.put(None)

    async def score(self, prompts: Sequence[PromptToScore]) -> list[ScoredPrompt]:
        """The log-probabilities of `prompts`. A cancelled caller's prompts that wait are not computed.

        Raises SequenceFailed when the machine has no memory for them.
        """
        futures: list[asyncio.Future[ScoredPrompt]] = [self._loop.create_future() for _ in prompts]
        for job in zip(prompts, futures, strict=True):
            self._jobs.put(job)
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            waiting = [job]
            while not self._jobs.empty():
                more = self._jobs.get()
                if more is None:
                    return
                waiting.append(more)
            for row in pack([len(prompt.token_ids) for prompt, _ in waiting], self._row_tokens):
                self._score_row([waiting[index] for index in row])

    def _score_row(self, jobs: list[_Job], *, is_last_try: bool = False) -> None:
        """Whatever fails in it must not end this thread: others wait behind it.

        A row that fails is divided until the one at fault, or too long, is alone; it is tried once more then.
        """
        jobs = [job for job in jobs if not job[1].cancelled()]
        if not jobs:
            return
        try:
            scored = self._scores_of([prompt for prompt, _ in jobs])
        except Exception as error:
            failure = error.with_traceback(None)
        else:
            for (_, future), result in zip(jobs, scored, strict=True):
                self._loop.call_soon_threadsafe(_resolve, future, result)
            return
        if is_broken_device(failure):
            self._on_death(failure)
        if is_out_of_memory(failure):
            free_what_failed()
        self._score_again(jobs, failure, is_last_try=is_last_try or is_out_of_memory(failure))

    def _score_again(self, jobs: list[_Job], failure: Exception, *, is_last_try: bool) -> None:
        if len(jobs) > 1:
            self._score_row(jobs[: len(jobs) // 2])
            self._score_row(jobs[len(jobs) // 2 :])
        elif not is_last_try:
            self._score_row(jobs, is_last_try=True)
        else:
            prompt, future = jobs[0]
            self._loop.call_soon_threadsafe(_resolve, future, self._failure(prompt, failure))

    def _scores_of(self, prompts: list[PromptToScore]) -> list[ScoredPrompt]:
        if sum(len(prompt.token_ids) for prompt in prompts) > self._row_tokens:
            # Longer than any step: its blocks, too large to be wanted again soon, are kept by the C library otherwise.
            return_large_blocks()
        for prompt in prompts:
            if prompt.sampler is not None:
                prompt.sampler.wait()  # for the mask of its next token: nobody generates within
        with self._batcher.exclusive():
            return score_prompts(self._model, prompts)

    @staticmethod
    def _failure(prompt: PromptToScore, error: Exception) -> SequenceFailed:
        if isinstance(error, SequenceFailed):
            return error
        if is_out_of_memory(error):
            return OutOfMemory.while_doing(f"scoring {len(prompt.token_ids)} tokens of a prompt at once", error)
        _log.error("request %s failed while its prompt was scored", prompt.request_id, exc_info=error)
        return SequenceFailed(
            f"the worker failed on this request ({type(error).__name__}); its log says why, under {prompt.request_id}"
        )


def _resolve(future: asyncio.Future[ScoredPrompt], result: ScoredPrompt | SequenceFailed) -> None:
    if future.done():
        return
    if isinstance(result, SequenceFailed):
        future.set_exception(result)
    else:
        future.set_result(result)
