"""Checks a server before an evaluation: log-probabilities of a prompt against those of its own answer.

A server that ignores `echo` or `logprobs`, counts tokens otherwise, or adds a BOS scores every choice at chance, and
lm-eval can't tell. Here it is asked two questions of which the answers must agree: what it says next, with the
log-probability, and the log-probability of just that in a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation.server import ServedModel, post_json
from qserve.evaluation.tokenizer import load_tokenizer

__all__ = ["check"]

# The same token by two ways through a 16-bit model: seen to differ by 0.03, a wrong position by 1 and more.
_TOLERANCE = 0.25
_NUM_TOKENS = 4
# Any text: what counts is that both ways through the server agree on it.
_TEXT = "The quick brown fox"


def check(served: ServedModel) -> float:
    """The largest difference of a log-probability that was seen. Raises UsageError with what is wrong."""
    tokenizer = load_tokenizer(served.tokenizer)
    prompt_ids: list[int] = tokenizer(_TEXT, add_special_tokens=False)["input_ids"]
    request = {"prompt": list(prompt_ids), "max_tokens": _NUM_TOKENS, "temperature": 0, "logprobs": 1}
    completion = _choice(served, request)
    answer = [float(one) for one in (completion.get("logprobs") or {}).get("token_logprobs") or ()]
    tokens = tokenizer(str(completion.get("text", "")), add_special_tokens=False)["input_ids"]
    both = [*prompt_ids, *(tokens or [tokenizer.eos_token_id])]
    echoed = _choice(served, {"prompt": both, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True})
    logprobs = (echoed.get("logprobs") or {}).get("token_logprobs")
    top = (echoed.get("logprobs") or {}).get("top_logprobs")
    if not logprobs or not top or not answer:
        raise _refused(served, "it answers without log-probabilities although `logprobs` asks for them")
    if len(logprobs) != len(both) + 1:
        raise _refused(
            served,
            f"a prompt of {len(both)} tokens and one more came back with {len(logprobs)} log-probabilities: it "
            "ignores `echo`, or adds tokens",
        )
    if logprobs[0] is not None:
        raise _refused(served, "it gives a log-probability for the first token, which can't have one")
    return _largest_difference(served, answer, logprobs[len(prompt_ids) : len(both)])


def _largest_difference(served: ServedModel, answer: Sequence[float], echoed: Sequence[float]) -> float:
    # The text of an answer may be cut into other tokens than those that were drawn; the first ones are the same.
    pairs = list(zip(answer, echoed, strict=False))[: max(1, len(echoed) - 1)]
    worst = max((abs(one - other) for one, other in pairs), default=math.inf)
    if not worst <= _TOLERANCE:
        shown = ", ".join(f"{one:.3f} and {other:.3f}" for one, other in pairs)
        raise _refused(
            served, f"two log-probabilities for the same token of its answer differ by up to {worst:.2f} ({shown})"
        )
    return worst


def _choice(served: ServedModel, fields: dict[str, Any]) -> dict[str, Any]:
    answer = post_json(f"{served.url}/v1/completions", served.api_key, {"model": served.model, **fields}, is_probe=True)
    try:
        return dict(answer["choices"][0])
    except (LookupError, TypeError, ValueError):
        raise _refused(served, "its answer to POST /v1/completions has no `choices`") from None


def _refused(served: ServedModel, reason: str) -> UsageError:
    return UsageError(
        f"{served.url} can't be evaluated by log-likelihoods: {reason}. Tasks that only generate can be "
        "(--no-preflight skips this check, at your own risk)"
    )
