"""From a step's logits to one token a sequence: what all batchers do between two forwards.

A draw is launched, and its tokens are read later: by then the next forward may be under way. Nothing in it waits for
the device. Rows that take the likeliest token share an argmax; the others are drawn together, by kind of truncation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

import torch

from qserve.engines.transformers.worker.batching.batcher import Deliveries, Sequence, failure_of
from qserve.engines.transformers.worker.sampling.adjust import Adjustment, is_allowed, likeliest_allowed
from qserve.engines.transformers.worker.sampling.draw import Truncation, drawn, largest, likeliest, num_candidates
from qserve.engines.transformers.worker.sampling.params import LOWEST_LOGPROB, SamplingParams, TokenChoice
from qserve.engines.transformers.worker.sampling.penalties import SeenTokens
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.failures import NOT_A_NUMBER, SequenceFailed
from qserve.model.out_of_memory import is_broken_device, is_out_of_memory
from qserve.model.transfers import HostCopy, upload

__all__ = ["BatchSampler", "Drawn", "choose_one", "choose_tokens", "deliveries", "top_logprobs"]

Choice = TokenChoice | Exception
# Of a row: whether anything is left out, whether by top-k, and among how many candidates.
_Kind = tuple[bool, bool, int | None]
_TOKEN, _HIGHEST, _LOGPROB, _TOP = range(4)


def choose_tokens(
    sequences: list[Sequence], scores: torch.Tensor, sampler: BatchSampler | None = None, late: Collection[int] = ()
) -> Deliveries:
    """The next token of each sequence, but of the `late` rows, from its row of `scores` [sequences, vocab], float32.

    What goes wrong in one row fails its own sequence and no other.
    """
    if len(late) == len(sequences):
        return []
    samplers = [one.sampler for one in sequences]
    return deliveries(sequences, (sampler or BatchSampler()).draw(samplers, scores, late=late))


def choose_one(sampler: SequenceSampler, scores: torch.Tensor) -> TokenChoice:
    """The next token of a sequence alone, of its `scores` [vocab]; waits for its mask."""
    (choice,) = BatchSampler().draw([sampler], scores[None]).choices()
    if isinstance(choice, Exception):
        raise choice
    assert choice is not None
    return choice


def deliveries(sequences: SequenceOf[Sequence], draw: Drawn) -> Deliveries:
    """What each sequence is told that did not sit out; it has noted its token, or that it has failed."""
    found: Deliveries = []
    for one, choice in zip(sequences, draw.choices(), strict=True):
        if choice is None:
            continue
        item = failure_of(one, choice) if isinstance(choice, Exception) else choice
        one.note(item)
        found.append((one, item))
    return found


@dataclass(frozen=True)
class Drawn:
    """A draw that was launched.

    Attributes:
        tokens: int64 [rows] on the device, as the next forward reads them.
        samplers: whose rows they are.
        failures: what was known of rows before the draw.
        copied: the tokens, and what was asked of them, on their way to the host.
        num_top: alternatives of each row.
        late: rows that sat out; their tokens mean nothing.

    """

    tokens: torch.Tensor
    samplers: list[SequenceSampler]
    failures: dict[int, Exception]
    copied: HostCopy
    num_top: int
    late: Collection[int] = ()

    def choices(self) -> Iterator[Choice | None]:
        """What each row became, None where it sat out; waits for the draw.

        Called once: the sampler of a row takes in what was drawn when its row is asked for.
        """
        for index, row in enumerate(self.copied.rows()):
            sampler = self.samplers[index]
            if sampler.takes_as_drawn and not self.failures and math.isfinite(row[_HIGHEST]):
                # As `_choice` has it, without its calls: nearly all rows are such, and a step on a card waits for them.
                token_id = int(row[_TOKEN])
                sampler.drawn.append(token_id)
                yield TokenChoice(token_id)
            else:
                yield self._choice(index, row)

    def _choice(self, index: int, row: list[float]) -> Choice | None:
        if index in self.late:
            return None
        if index in self.failures:
            return self.failures[index]
        if not math.isfinite(row[_HIGHEST]):  # NaN logits of a broken checkpoint, or of an overflow in float16
            return SequenceFailed(NOT_A_NUMBER)
        try:
            return self._taken(self.samplers[index], row)
        except Exception as error:
            return error

    def _taken(self, sampler: SequenceSampler, row: list[float]) -> TokenChoice:
        token_id, asked = sampler.take(int(row[_TOKEN])), sampler.params.num_logprobs
        if asked is None:
            return TokenChoice(token_id)
        top = zip(row[_TOP : _TOP + asked], row[_TOP + self.num_top :][:asked], strict=True)
        return TokenChoice(token_id, row[_LOGPROB], tuple((int(token), value) for token, value in top))


class BatchSampler:
    """Draws for the sequences of a batch; keeps what does not change while the same ones stand in it.

    Belongs to one generating thread.
    """

    def __init__(self) -> None:
        self._seen = SeenTokens()
        self._key: tuple[object, ...] = ()
        self._rows: _Rows | None = None

    def draw(
        self,
        samplers: list[SequenceSampler],
        scores: torch.Tensor,
        all_scores: Callable[[], torch.Tensor] | None = None,
        late: Collection[int] = (),
    ) -> Drawn:
        """Launch the draw of a token for each row of `scores` [samplers, vocab] float32, which are not changed.

        `all_scores`: where `scores` of unlikely tokens may be missing (`num_wanted_first`), gives them all. `late`:
        rows that sit out (`late.late_rows`), which nothing is asked of.
        """
        bound = [one for one in samplers if not one.is_always_plain]  # a call a row less
        if all(one.is_plain_greedy for one in bound):
            highest, best = largest(scores)
            copied = HostCopy(torch.stack((best.double(), highest.double()), dim=-1))
            return Drawn(best, samplers, {}, copied, 0)
        try:
            return self._draw(samplers, scores, all_scores, late)
        except Exception:
            # What is half written is made anew: the others are drawn again.
            self._seen, self._rows, self._key = SeenTokens(), None, ()
            raise

    def _draw(
        self,
        samplers: list[SequenceSampler],
        scores: torch.Tensor,
        all_scores: Callable[[], torch.Tensor] | None,
        late: Collection[int],
    ) -> Drawn:
        device = scores.device
        known = _known_before(samplers, late)
        rows = self._rows_of(samplers, scores)
        highest, best = largest(scores) if rows.has_greedy else (scores.amax(dim=-1), None)
        if all_scores is not None and best is not None and not known.allow(best):
            scores = all_scores()
            highest, best = largest(scores)
        if best is not None and device.type == "cpu":
            known.force_likeliest_allowed(samplers, scores, best)
        adjusted = rows.adjust(scores, samplers, self._seen, known.masks)
        tokens = rows.drawn(adjusted, known.uniforms, best if adjusted is scores else None)
        if known.forced:
            forced = upload([known.forced.get(row, -1) for row in range(len(samplers))], torch.long, device)
            tokens = torch.where(forced >= 0, forced, tokens)
        if known.instead:
            tokens = _instead(tokens, known.instead, device)
        columns = [tokens.double()[:, None], highest.double()[:, None]]
        if rows.num_top is not None:
            columns += _described(tokens, scores, rows.num_top)
        copied = HostCopy(torch.cat(columns, dim=-1))
        return Drawn(tokens, samplers, known.failures, copied, rows.num_top or 0, late)

    def _rows_of(self, samplers: list[SequenceSampler], scores: torch.Tensor) -> _Rows:
        serials = tuple([one.serial for one in samplers])  # a list first: a generator is a call a row
        too_short = tuple([one.is_too_short for one in samplers if one.params.min_tokens])
        key = serials, too_short, scores.shape[1], scores.device
        if self._rows is None or key != self._key:
            self._rows, self._key = _Rows(samplers, scores.shape[1], scores.device), key
        return self._rows


@dataclass(frozen=True)
class _Known:
    """Of rows, what the host knows before a draw, by row: all but `uniforms` for those alone that have it."""

    uniforms: list[float]
    forced: dict[int, int]
    masks: dict[int, bytes]
    instead: dict[int, tuple[int, list[int]]]
    failures: dict[int, Exception]

    def allow(self, best: torch.Tensor) -> bool:
        """Whether each row's grammar allows its likeliest token."""
        return all(is_allowed(int(best[row]), mask) for row, mask in self.masks.items())

    def force_likeliest_allowed(
        self, samplers: list[SequenceSampler], scores: torch.Tensor, best: torch.Tensor
    ) -> None:
        """On a CPU, for rows that take the likeliest token that is allowed: no mask of theirs is left.

        `best`, the likeliest of each row, mostly follows its structure: then nothing is laid on its scores.
        """
        for row in [row for row in self.masks if samplers[row].takes_likeliest]:
            likeliest = int(best[row])
            self.forced[row] = likeliest_allowed(scores[row].numpy(), likeliest, self.masks.pop(row))
            samplers[row].was_likeliest = self.forced[row] == likeliest


def _known_before(samplers: list[SequenceSampler], late: Collection[int]) -> _Known:
    known = _Known([], {}, {}, {}, {})
    for row, one in enumerate(samplers):
        known.uniforms.append(0.0)
        if row in late:
            continue
        try:
            if one.uniforms is not None:
                known.uniforms[-1] = one.uniforms.at(len(one.drawn))
            if one.is_free:
                continue
            forced = one.forced
            if forced is not None:
                known.forced[row] = forced
                continue
            if (mask := one.allowed()) is not None:
                known.masks[row] = mask
            if (instead := one.instead_of_ends()) is not None:
                known.instead[row] = instead, sorted(one.params.stop_token_ids)
        except Exception as error:
            if is_broken_device(error) or is_out_of_memory(error):
                raise
            known.failures[row] = error
    return known


def _instead(tokens: torch.Tensor, instead: dict[int, tuple[int, list[int]]], device: torch.device) -> torch.Tensor:
    """`tokens`, but for those that would end an answer before it may."""
    triples = [(row, end, token) for row, (token, ends) in instead.items() for end in ends]
    if not triples:
        return tokens
    rows, ends, others = upload(list(zip(*triples, strict=True)), torch.long, device)
    # One write a row at most: of a row's ends only one was drawn. The others write to a place of their own.
    beside = torch.where(tokens[rows] == ends, rows, len(tokens))
    return torch.cat((tokens, tokens[:1])).index_copy_(0, beside, others)[:-1]


def _described(tokens: torch.Tensor, scores: torch.Tensor, num_top: int) -> list[torch.Tensor]:
    """Columns: the log-probability of each token, `num_top` tokens, and theirs."""
    logprobs = torch.log_softmax(scores, dim=-1)
    chosen = logprobs.gather(-1, tokens[:, None])
    columns = [chosen.clamp(min=LOWEST_LOGPROB).double()]
    if num_top:
        values, ids = likeliest(logprobs, min(num_top, scores.shape[-1]))
        missing = (0, num_top - ids.shape[-1])
        columns += [torch.nn.functional.pad(part.double(), missing) for part in (ids, values.clamp(min=LOWEST_LOGPROB))]
    return columns


def top_logprobs(logprobs: torch.Tensor, num_top: int) -> list[tuple[tuple[int, float], ...]]:
    """The `num_top` likeliest (token, logprob) of each row of `logprobs` [rows, vocab]; minus infinity reads -9999."""
    values, ids = logprobs.topk(num_top, dim=-1)
    values = values.clamp(min=LOWEST_LOGPROB)
    return [tuple(zip(i, v, strict=True)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


class _Rows:
    """What stays the same as long as the same sequences stand in a batch."""

    def __init__(self, samplers: list[SequenceSampler], vocab_size: int, device: torch.device) -> None:
        params = [one.params for one in samplers]
        self.adjust = Adjustment(samplers, vocab_size, device)
        self.num_top = max((one.num_logprobs for one in params if one.num_logprobs is not None), default=None)
        kinds: dict[_Kind, list[int]] = {}
        for row, one in enumerate(params):
            if not one.is_greedy:
                kinds.setdefault(_kind_of(one, vocab_size), []).append(row)
        self._groups = [_Group(kind, rows, params, vocab_size, device) for kind, rows in kinds.items()]
        self.has_greedy = any(one.is_greedy for one in params)

    def drawn(self, adjusted: torch.Tensor, uniforms: list[float], best: torch.Tensor | None) -> torch.Tensor:
        """A token of each row; `best`: the likeliest of each, where that is known."""
        if len(self._groups) == 1 and len(self._groups[0].rows) == len(adjusted):
            return self._groups[0].drawn(adjusted, uniforms)
        tokens = largest(adjusted)[1] if best is None else best
        for group in self._groups:
            tokens.index_copy_(0, group.index, group.drawn(adjusted[group.index], uniforms))
        return tokens


def _kind_of(params: SamplingParams, vocab_size: int) -> _Kind:
    """No row is drawn together with others that change how its own scores are sorted."""
    has_top_k = 0 < params.top_k < vocab_size
    is_cut = has_top_k or params.top_p < 1.0 or params.min_p > 0.0
    return is_cut, has_top_k, num_candidates(params.top_k, vocab_size)


class _Group:
    """Rows that are drawn in the same way."""

    def __init__(
        self, kind: _Kind, rows: list[int], params: list[SamplingParams], vocab_size: int, device: torch.device
    ) -> None:
        asked = [params[row] for row in rows]
        is_cut, _, self._number = kind
        self.rows = rows
        self.index = upload(rows, torch.long, device)
        self._temperature = upload([[one.temperature] for one in asked], torch.float32, device)
        self._truncation = Truncation.of(asked, vocab_size, device) if is_cut else None

    def drawn(self, scores: torch.Tensor, uniforms: list[float]) -> torch.Tensor:
        """Tokens [rows of this group], of theirs alone; `uniforms` are of all rows."""
        numbers = upload([uniforms[row] for row in self.rows], torch.float64, scores.device)
        return drawn(scores / self._temperature, self._number, self._truncation, numbers)
