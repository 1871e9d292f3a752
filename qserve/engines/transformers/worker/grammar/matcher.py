"""A grammar in llguidance's hands: its limits, whether any answer follows it, and what it holds.

llguidance (what vLLM calls `guidance`) rather than xgrammar: it compiles nothing over the vocabulary, so that a new
schema costs milliseconds; each of its steps has a limit, so that none explodes; it lets go of the interpreter; and it
refuses the keywords that it can't hold, where xgrammar leaves them out in silence.
"""

from __future__ import annotations

from dataclasses import dataclass

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["Grammar", "matcher_of"]

# The library's own limits, but for the work of a single token, about 50 ms at most, and that of a pattern before the
# first one, half a second in place of three: whoever sends another structure waits for it.
_LIMITS = LLParserLimits(
    step_max_items=20_000, step_lexer_fuel=100_000, initial_lexer_fuel=300_000, verbose_errors=False
)
_NUM_PROBED = 16
# A grammar grows while answers follow it, by what it learns of texts: at most so much a token, and in all.
_TOKEN_BYTES, _MAX_GROWTH_BYTES = 16 * 1024, 100 * 1024 * 1024


@dataclass(eq=False)
class Grammar:
    """A grammar that is ready.

    Attributes:
        matcher: at its beginning, to be copied for each answer.
        num_bytes: what it took at its trial.
        num_tokens: that answers have followed it by; whoever follows it counts them.
    """

    matcher: LLMatcher
    num_bytes: int = 0
    num_tokens: int = 0

    @property
    def most_bytes(self) -> int:
        """What it may hold by now."""
        return self.num_bytes + min(_MAX_GROWTH_BYTES, self.num_tokens * _TOKEN_BYTES)


def matcher_of(tokens: LLTokenizer, grammar: str) -> tuple[LLMatcher, str]:
    """A matcher at its beginning, to be copied for each answer, and why no answer can follow it (empty: one can).

    It takes what time and memory it takes: limits of the library hold for its steps, not for what a count multiplies.
    """
    matcher = LLMatcher(tokens, grammar, limits=_LIMITS, log_level=0)
    probe = matcher.deep_copy()
    # What explodes, or holds no answer at all, does so at its first tokens.
    for _ in range(_NUM_PROBED):
        if not probe.is_error():
            probe.compute_bitmask()
        if probe.is_error():
            return matcher, probe.get_error() or "it can't be followed"
        if not (forced := probe.compute_ff_tokens()):
            break
        probe.consume_tokens(forced)
    return matcher, ""
