"""Log-probabilities of the tokens of a prompt: what `echo` with `logprobs` answers, and what lm-eval asks for.

Prompts from all requests are packed end to end into rows of bounded length; on a CPU a row is padded to one of a few
lengths (`engines/transformers/kernels/shapes.py`). The logits are made for a
few positions at a time, so that 8192 tokens of a vocabulary of 152k need megabytes and not 5 GiB.

A recurrent state would run from one packed prompt into the next: models with linear attention get a row for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

import torch

from qserve.engines.transformers.kernels.shapes import padded_length
from qserve.engines.transformers.worker.sampling.batch import choose_one, top_logprobs
from qserve.engines.transformers.worker.sampling.params import LOWEST_LOGPROB, TokenChoice
from qserve.engines.transformers.worker.sampling.sampler import SequenceSampler
from qserve.model.failures import NOT_A_NUMBER, SequenceFailed
from qserve.model.transfers import upload

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["PromptToScore", "ScoredPrompt", "can_pack", "pack", "score_prompts"]

# Float32 logits of one piece, whatever the vocabulary. About three times as much is alive at once: the head's own
# output, the same in float32, and its log-softmax.
_LOGITS_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class PromptToScore:
    """`num_top` alternatives a position; `sampler` draws the token after the prompt, None where none is asked for.
    `is_ranked`: the place of each token among all is wanted, too.

    A prompt may be scored again after a failure: it is always a fresh copy of `sampler` that draws.
    """

    token_ids: Sequence[int]
    num_top: int
    sampler: SequenceSampler | None
    request_id: str = ""
    is_ranked: bool = False


@dataclass(frozen=True)
class ScoredPrompt:
    """Entry i is token i's log-probability given the tokens before it; nothing precedes the first, so its is None.

    `ranks`: how many tokens are at least as likely, the token among them; empty where they are not wanted.
    """

    logprobs: list[float | None]
    top: list[tuple[tuple[int, float], ...]]
    next_token: TokenChoice | None
    ranks: list[int | None] = field(default_factory=list)


def can_pack(model: PreTrainedModel) -> bool:
    """Whether prompts may lie end to end: every layer must see where each ends, and linear attention does not."""
    return "linear_attention" not in (getattr(model.config.get_text_config(), "layer_types", None) or ())


def pack(lengths: Sequence[int], max_num_batched_tokens: int) -> Iterator[range]:
    """Ranges of consecutive prompts that fit one row. One that is longer than the row gets a row of its own."""
    start, used = 0, 0
    for index, length in enumerate(lengths):
        if index > start and used + length > max_num_batched_tokens:
            yield range(start, index)
            start, used = index, 0
        used += length
    if start < len(lengths):
        yield range(start, len(lengths))


@torch.no_grad()
def score_prompts(model: PreTrainedModel, prompts: Sequence[PromptToScore]) -> list[ScoredPrompt]:
    """One forward over `prompts`, packed. Needs an attention that reads `cu_seqlens`: ours, or flash-attn."""
    lengths = [len(prompt.token_ids) for prompt in prompts]
    device = model.device
    token_ids = [t for prompt in prompts for t in prompt.token_ids]
    if device.type == "cpu" and can_pack(model) and (num_padding := padded_length(len(token_ids)) - len(token_ids)):
        token_ids += [0] * num_padding  # a text of its own, which nobody reads
        lengths.append(num_padding)
    ends = [0, *accumulate(lengths)]
    cu_seqlens = upload(ends, torch.int32, device)
    hidden = model.base_model(
        input_ids=upload([token_ids], torch.long, device),
        position_ids=upload([[place for length in lengths for place in range(length)]], torch.long, device),
        cu_seq_lens_q=cu_seqlens,
        cu_seq_lens_k=cu_seqlens,
        max_length_q=max(lengths),
        max_length_k=max(lengths),
        use_cache=False,
    ).last_hidden_state[0]
    return [_score(model, hidden[a:b], p) for a, b, p in zip(ends, ends[1:], prompts, strict=False)]


def _score(model: PreTrainedModel, hidden: torch.Tensor, prompt: PromptToScore) -> ScoredPrompt:
    """`hidden` is [tokens, width] of one prompt."""
    head = model.get_output_embeddings()
    targets = upload(prompt.token_ids[1:], torch.long, hidden.device)
    logprobs: list[float | None] = [None]
    top: list[tuple[tuple[int, float], ...]] = [()]
    ranks: list[int | None] = [None] if prompt.is_ranked else []
    step = max(1, _LOGITS_BYTES // (4 * model.config.get_text_config().vocab_size))
    for start in range(0, len(targets), step):
        wanted = targets[start : start + step]
        rows = torch.log_softmax(head(hidden[start : start + len(wanted)]).float(), dim=-1)
        if not torch.isfinite(rows.amax(dim=-1)).all():
            raise SequenceFailed(NOT_A_NUMBER)
        # A head that shares the embedding's weight lies with it, which may be another card than the last layer's.
        chosen = rows.gather(1, wanted[:, None].to(rows.device))
        logprobs += chosen[:, 0].clamp(min=LOWEST_LOGPROB).tolist()
        if prompt.is_ranked:
            ranks += (rows >= chosen).sum(dim=-1).tolist()
        top += top_logprobs(rows, prompt.num_top) if prompt.num_top else [()] * len(wanted)
        del rows  # or the next piece would be made beside it
    following = None
    if prompt.sampler is not None:
        following = choose_one(prompt.sampler.fresh(), head(hidden[-1:]).float()[0])
    return ScoredPrompt(logprobs, top, following, ranks)
