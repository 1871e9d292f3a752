"""Scores texts of all clients together, in rows of bounded length. A score does not depend on its row."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from qserve.errors import BrokenCheckpoint, DoesNotFit
from qserve.model.failures import SequenceFailed
from qserve.model.out_of_memory import OutOfMemory
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.failures import TextRefused, too_long
from qserve.reward.items import Score, ScoreItem, TokenizedText
from qserve.reward.load import LoadedReward
from qserve.reward.scoring.compute import Output, RowComputer, ScorerStats
from qserve.reward.scoring.fair_queue import Flow
from qserve.reward.scoring.forward import PooledText
from qserve.reward.scoring.pooling import PoolingRule
from qserve.reward.scoring.row_queue import HORIZON_ROWS, Job, RowQueue, RowRules
from qserve.reward.scoring.template import RewardTemplate
from qserve.reward.settings import RewardSettings
from qserve.worker.heartbeat import Heartbeat

__all__ = ["RewardScorer", "Score", "ScoreItem", "ScorerStats", "TokenizedText", "check_length", "how_scored"]

# Rows on a CPU: long enough for its matrix kernels, short enough that a row's activations stay in the caches and that
# one waits only so long for a place in the next.
_CPU_ROW_TOKENS = 1024
_WARM_UP_TOKENS = 64

Outcome = Score | SequenceFailed


class RewardScorer:
    """One loaded reward model and the queue before it.

    `score` and `score_each` are for event loops, and need `start`; `score_now` is for a program without one.
    """

    def __init__(
        self,
        loaded: LoadedReward,
        settings: RewardSettings,
        *,
        max_length: int,
        max_num_batched_tokens: int,
        share_prefixes: bool = True,
        rows_at_once: int = 1,
    ) -> None:
        self.loaded = loaded
        self.vectors = loaded.checkpoint.vectors
        own = self.vectors.max_length if self.vectors is not None else None
        self.max_length = min(max_length, settings.max_length or own or max_length)
        self.template = RewardTemplate(loaded.tokenizer, loaded.checkpoint, settings, self.max_length)
        self.rule = PoolingRule.of(loaded.checkpoint, settings, loaded.tokenizer.eos_token_id)
        self._computer = RowComputer(loaded)
        rules = _rules(loaded, max_num_batched_tokens, share_prefixes, rows_at_once)
        self.row_tokens = rules.row_tokens
        self.tokens_ahead = 2 * HORIZON_ROWS * rules.row_tokens
        self._queue = RowQueue(self._computer, rules)

    @property
    def stats(self) -> ScorerStats:
        """The books of the scorer, as they are now."""
        return self._computer.stats

    @property
    def meta(self) -> dict[str, Any]:
        """How scores come about, for people and for records."""
        checkpoint, loaded = self.loaded.checkpoint, self.loaded
        return {
            **how_scored(checkpoint, self.template, self.rule, self.max_length),
            "step_token": _text_of(loaded.tokenizer, checkpoint.step_token_id),
            "dtype": loaded.dtype,
            "quant": loaded.quant,
        }

    def beat_on_the_way(self, heartbeat: Heartbeat) -> None:
        """Let the supervisor see that rows are computed, and within a long one its layers."""
        self._computer.on_row = heartbeat.beat
        for layer in getattr(self.loaded.body, "layers", ()):
            layer.register_forward_pre_hook(lambda *_: heartbeat.beat())

    def start(self, on_death: Callable[[BaseException], None] | None = None) -> None:
        """Start the threads, also after a `stop`. Raises RuntimeError while they run.

        `on_death` is called, from a thread, when nothing can be computed any more: a card that reported an error is of
        no use to this process.
        """
        if on_death is not None:
            self._queue.on_death = on_death
        self._queue.start()

    def stop(self) -> None:
        """End the threads after the rows that they are at; what still waits fails."""
        self._queue.stop()

    def warm_up(self) -> None:
        """Score a little, so that the first user does not pay for first-time set-up.

        Raises BrokenCheckpoint when no number comes out: such a model would fail every text; DoesNotFit when there is
        no memory for it.
        """
        token = self.loaded.tokenizer.eos_token_id or 0
        token = token if token < self.loaded.body.get_input_embeddings().weight.shape[0] else 0
        length = min(_WARM_UP_TOKENS, self.max_length)
        outcome = self.score_now([ScoreItem([token] * length, positions=(length - 1,))])[0]
        with contextlib.suppress(TextRefused):  # without a chat template
            self.template.encode([{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}])
        self._computer.stats = ScorerStats()
        if isinstance(outcome, SequenceFailed):
            kind = DoesNotFit if outcome.code == OutOfMemory.code else BrokenCheckpoint
            raise kind(f"{self.loaded.checkpoint.id} can't be used: {outcome}")

    async def score(self, items: Sequence[ScoreItem], flow: Flow | None = None) -> list[Score]:
        """The scores, in the order of `items`; computed together with what other requests wait for.

        Requests get equal shares of the tokens that are computed. One that comes in several calls names itself by the
        same `flow`; without one the call is a request of its own. Raises TextRefused for an item that can't be read
        as the model is (too long, no step token, …), before anything runs; SequenceFailed for one
        that failed.
        """
        outcomes = await self.score_each(items, flow)
        for outcome in outcomes:
            if isinstance(outcome, SequenceFailed):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Score)]

    async def score_each(self, items: Sequence[ScoreItem], flow: Flow | None = None) -> list[Outcome]:
        """The same, with the failure of an item in its place. Items of a caller that is cancelled are not computed."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in items]
        jobs = [self._job(item, loop, future) for item, future in zip(items, futures, strict=True)]
        if not jobs:
            return []
        self._queue.put(jobs, flow or Flow())
        try:
            return list(await asyncio.gather(*futures))
        finally:
            for future in futures:
                future.cancel()

    def score_now(self, items: Sequence[ScoreItem]) -> list[Outcome]:
        """The same, computed here and now. Not between `start` and `stop`."""
        outcomes: dict[int, Outcome] = {}

        def keep(index: int, item: ScoreItem, text: PooledText) -> Job:
            return Job(text, lambda output: outcomes.__setitem__(index, self._outcome(item, text, output)))

        self._queue.run([keep(index, item, self._checked(item)) for index, item in enumerate(items)])
        return [outcomes[index] for index in range(len(items))]

    def _checked(self, item: ScoreItem) -> PooledText:
        """Raises TextRefused for an item that can't be scored."""
        check_length(item, self.max_length)
        return PooledText(item.token_ids, self.rule.pooled(item))

    def _job(self, item: ScoreItem, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Outcome]) -> Job:
        text = self._checked(item)

        def deliver(output: Output) -> None:
            outcome = self._outcome(item, text, output)
            with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, outcome)

        return Job(text, deliver, future.cancelled)

    def _outcome(self, item: ScoreItem, text: PooledText, output: Output) -> Outcome:
        if isinstance(output, SequenceFailed):
            return output
        try:
            return self._score_of(item, text, output)
        except Exception as error:  # whatever it is, it is this text's alone
            return SequenceFailed(f"scoring failed: {error}")

    def _score_of(self, item: ScoreItem, text: PooledText, output: torch.Tensor) -> Score:
        checkpoint = self.loaded.checkpoint
        if checkpoint.vectors is not None:
            self._computer.count_item(len(item.token_ids), item.truncated)
            vector = output[-1].numpy().copy()  # no view that would keep the whole row's
            return Score(0.0, None, len(item.token_ids), item.truncated, text.pooled.positions[-1], vector=vector)
        rows = output.tolist()
        values = [checkpoint.reward(row) for row in rows]
        many = item.positions is not None or self.rule.step_token_id is not None
        position = -1 if text.pooled.mean else text.pooled.positions[-1]
        self._computer.count_item(len(item.token_ids), item.truncated)
        steps, attributes = tuple(values) if many else None, tuple(rows[-1]) if checkpoint.labels else None
        return Score(values[-1], steps, len(item.token_ids), item.truncated, position, attributes)


def check_length(item: ScoreItem, max_length: int) -> None:
    """Raises TextRefused for a text that is empty or too long."""
    if not item.token_ids:
        raise TextRefused("the text is empty: it has no tokens to score", "empty_input", "input")
    if len(item.token_ids) > max_length:
        raise too_long(len(item.token_ids), max_length)


def how_scored(
    checkpoint: RewardCheckpoint, template: RewardTemplate, rule: PoolingRule, max_length: int
) -> dict[str, Any]:
    """What `meta` says of a score that does not depend on where the body runs."""
    return {
        "format": checkpoint.format,
        "head": checkpoint.head.describe() if checkpoint.vectors is None else checkpoint.vectors.describe(),
        "pooling": rule.name,
        "template_hash": template.template_hash,
        "max_length": max_length,
        "truncate": template.truncate,
        "mean": checkpoint.mean,
        "std": checkpoint.std,
        "weights": dict(zip(checkpoint.labels, checkpoint.weights, strict=True)) or None,
    }


def _rules(loaded: LoadedReward, max_num_batched_tokens: int, share_prefixes: bool, rows_at_once: int) -> RowRules:
    on_cpu = loaded.device.type == "cpu"
    return RowRules(
        row_tokens=min(max_num_batched_tokens, _CPU_ROW_TOKENS) if on_cpu else max_num_batched_tokens,
        tokens_at_once=max_num_batched_tokens,
        packs=loaded.packs,
        shares=share_prefixes,
        num_workers=rows_at_once,
        num_threads=torch.get_num_threads() if on_cpu else 0,
    )


def _text_of(tokenizer: Any, token_id: int | None) -> str | None:
    return None if token_id is None else str(tokenizer.convert_ids_to_tokens(token_id))


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not future.done():
        future.set_result(outcome)
