"""The `logprobs` of /v1/chat/completions: an entry for each token, and one for each that might have stood there.

Each token's part is JSON at once: of many answers with many alternatives a whole document would be a million objects,
and a second in which nobody else's stream goes on.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from qserve.engines.transformers.worker.prompts.token_text import TokenText
from qserve.engines.transformers.worker.sampling.params import TokenChoice

__all__ = ["ChatLogprobs"]

# A few megabytes; what is written in one language has less.
_MAX_KEPT = 1 << 15


class ChatLogprobs:
    """For one vocabulary."""

    def __init__(self, naming: TokenText) -> None:
        self._naming = naming
        self._around = lru_cache(_MAX_KEPT)(self._make_around)

    def of(self, choice: TokenChoice) -> msgspec.Raw:
        """The entry of a token, as OpenAI has it, for msgspec to write down as it is."""
        top = b",".join([self._entry(token_id, logprob) + b"}" for token_id, logprob in choice.top])
        return msgspec.Raw(self._entry(choice.token_id, choice.logprob) + b',"top_logprobs":[' + top + b"]}")

    def _entry(self, token_id: int, logprob: float | None) -> bytes:
        """Without the bracket at its end."""
        before, behind = self._around(token_id)
        return before + (b"null" if logprob is None else repr(logprob).encode()) + behind

    def _make_around(self, token_id: int) -> tuple[bytes, bytes]:
        """What stands before the number and behind it."""
        label = msgspec.json.encode(self._naming.label(token_id))
        spelled = msgspec.json.encode(list(self._naming.raw(token_id)))
        return b'{"token":' + label + b',"logprob":', b',"bytes":' + spelled
