"""Kinds of failed requests, each with an error message."""

from __future__ import annotations

from qserve.bench.answer import StreamAnswer, WholeAnswer
from qserve.bench.records import Failure
from qserve.client.error_text import message_of

__all__ = ["broken_off", "refused", "timed_out", "unreachable", "wrong_stream"]

_LONGEST_QUOTE = 300


def unreachable(url: str, reason: str) -> Failure:
    """No connection."""
    return Failure(
        "unreachable", f"no server answers at {url} ({reason}); start one with `qserve up`, or name it with --url"
    )


def broken_off(url: str, reason: str, answer: WholeAnswer | None) -> Failure:
    """The connection ended within the answer."""
    if "no HTTP" in reason:
        return Failure("not HTTP", f"{url}: {reason}; is the port right, and does the server use http or https?")
    came = len(answer.arrivals_s) if isinstance(answer, StreamAnswer) else 0
    return Failure(
        "broke off",
        f"{url} ended an answer after {came} tokens ({reason}): the server died, or a proxy "
        "in between closed the connection",
    )


def timed_out(url: str, timeout_s: float) -> Failure:
    """No complete answer in time."""
    return Failure(
        "timed out",
        f"{url} gave no complete answer within {timeout_s:g} s; --timeout allows more, less load needs less",
    )


def refused(url: str, path: str, model: str, answer: WholeAnswer) -> Failure:
    """A status that is not 200."""
    status, words = answer.status, _words(answer.body)
    if status in (401, 403):
        return Failure(
            f"key refused ({status})",
            f"{url} refuses the key ({words}); give it with --api-key, QSERVE_API_KEY or OPENAI_API_KEY",
        )
    if status == 404 and model in words:
        return Failure("no such model (404)", f"{url} does not serve {model!r} ({words}); --model names another")
    if status in (404, 405):
        return Failure(
            f"no such route ({status})",
            f"{url} answers {status} to POST {path} ({words}); is it an OpenAI-compatible server, and --url its "
            "address without a path? --endpoint names another route",
        )
    if status == 429:
        return Failure("refused as too busy (429)", f"{url} refused requests as too many ({words})")
    if 300 <= status < 400:
        return Failure(f"HTTP {status}", f"{url} redirects clients ({status}); name the final address with --url")
    return Failure(f"HTTP {status}", f"{url} answered {status}: {words}")


def wrong_stream(url: str, answer: StreamAnswer) -> Failure | None:
    """A 200 that can't be measured as a stream; None where it can."""
    if "event-stream" not in answer.content_type:
        return Failure(
            "not streamed",
            f"{url} answered in one piece ({answer.content_type or 'no content type'}) although a stream was "
            "requested, so the time to the first token can't be measured; --no-stream measures whole answers",
        )
    if answer.error:
        return Failure("error within the stream", f"{url} ended a stream with an error: {_cut(answer.error)}")
    if not answer.arrivals_s:
        seen = f"{answer.num_events} events, all with empty choices" if answer.num_events else "no event at all"
        return Failure("no token", f"{url} streamed an answer without a token: {seen}")
    return None


def _words(body: bytes) -> str:
    return _cut(message_of(body)) or "without a word"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + " …"
