"""A tokenizer's own file and the bounds of one model: from text to ids, or a refusal before much was computed."""

from __future__ import annotations

from tokenizers import Tokenizer

from qserve.prompts.special_tokens import HiddenTokens, SpecialTokens
from qserve.wire.prompt_size import ContextLimits

__all__ = ["PromptTokenizer"]

# A prefix of so many characters a token of the context is looked at first: English has 4 to 5.
_PREFIX_CHARS_PER_TOKEN = 8
# Tokens near the cut may be others in the whole text.
_CUT_MARGIN_CHARS = 1024


class PromptTokenizer:
    """Not to be shared by threads: it switches a setting of the tokenizer."""

    def __init__(self, tokenizer: Tokenizer, limits: ContextLimits) -> None:
        self._tokenizer = tokenizer
        self._limits = limits
        added = tokenizer.get_added_tokens_decoder()
        self.special = SpecialTokens({token.content: token_id for token_id, token in added.items() if token.special})
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def check_size(self, prompt: str | list[int]) -> None:
        """Raises ApiError 400 for a prompt of text or ids that can't fit, by its length alone."""
        self._limits.check(prompt)

    def prompt_ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The ids of a prompt. Raises ApiError 400 where there are surely more than fit."""
        self._check(text)
        return self.ids(text, add_special_tokens=add_special_tokens)

    def conversation_ids(self, rendered: str, hidden: HiddenTokens) -> list[int]:
        """The ids of a rendered conversation: control tokens are the template's alone, what was hidden is text.

        Raises ApiError 400 where there are surely more than fit.
        """
        self._check(rendered)
        return self.split_ids(rendered, hidden) if hidden else self.ids(rendered, add_special_tokens=False)

    def split_ids(self, rendered: str, hidden: HiddenTokens) -> list[int]:
        """As `conversation_ids`, piece by piece. Without hidden tokens the ids are those of the whole."""
        ids: list[int] = []
        self._tokenizer.encode_special_tokens = True
        try:
            for piece in self.special.split(rendered):
                if piece in self.special.ids:
                    ids.append(self.special.ids[piece])
                elif piece:
                    ids += self.ids(hidden.reveal(piece), add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = False
        return ids

    def ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Without any bound."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def _check(self, text: str) -> None:
        self.check_size(text)
        most = self._limits.max_model_len
        prefix = text[: _PREFIX_CHARS_PER_TOKEN * most + _CUT_MARGIN_CHARS]
        if len(prefix) < len(text) and (at_least := self._num_tokens_before_cut(prefix)) > most:
            known_by = f"counted in the first {len(prefix):,} of its {len(text):,} characters"
            raise self._limits.too_long(at_least, known_by=known_by)

    def _num_tokens_before_cut(self, prefix: str) -> int:
        """Tokens that any text of this beginning has: without the words at the cut, which go on behind it."""
        encoded = self._tokenizer.encode(prefix, add_special_tokens=False)
        last_word = encoded.word_ids[-1] if encoded.ids else None
        safe = len(prefix) - _CUT_MARGIN_CHARS
        return sum(
            end <= safe and word != last_word for (_, end), word in zip(encoded.offsets, encoded.word_ids, strict=True)
        )
