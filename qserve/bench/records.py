"""One request as the client saw it: raw times, from which every figure is derived."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Failure", "RequestRecord"]


@dataclass(frozen=True)
class Failure:
    """Why a request did not end well.

    Attributes:
        kind: a few words that requests with the same trouble share.
        sentence: what was seen and what to do.
    """

    kind: str
    sentence: str


@dataclass(slots=True)
class RequestRecord:
    """Times in seconds. TTFT, TPOT, ITL and E2E as in vLLM 0.32, benchmarks/lib/endpoint_request_func.py and serve.py.

    Attributes:
        due_s: when the schedule wanted it, since the stage began.
        start_s: when it was sent, connecting included, since the stage began.
        announced_s: first event with choices since the start, as vLLM counts it. Where a server names the role before
            it has a token, this is that announcement, and `chunk_s` begins later.
        chunk_s: arrival of each event with a token, since the start.
        end_s: the last byte of the answer, since the start.
        prompt_tokens, output_tokens: as the server counts them; output_tokens by our own tokenizer where it does not.
        num_texts: texts to score; 1 for a request that generates.
        failure: None for a complete answer. A failed request counts in no latency.
    """

    index: int
    due_s: float
    start_s: float
    announced_s: float = 0.0
    chunk_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    num_texts: int = 1
    failure: Failure | None = None

    @property
    def is_complete(self) -> bool:
        return self.failure is None

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None for an answer in one piece."""
        return self.chunk_s[0] if self.chunk_s else None

    @property
    def e2e_s(self) -> float:
        """To the last token; of an answer in one piece, to its last byte."""
        return self.chunk_s[-1] if self.chunk_s else self.end_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: (E2E - TTFT) / (tokens - 1). None for fewer than two tokens."""
        if self.output_tokens < 2 or not self.chunk_s:
            return None
        return (self.chunk_s[-1] - self.chunk_s[0]) / (self.output_tokens - 1)

    @property
    def itl_s(self) -> list[float]:
        """Between one event and the next. An event may hold several tokens, hence TPOT beside it."""
        return [later - earlier for earlier, later in zip(self.chunk_s, self.chunk_s[1:], strict=False)]
