"""A single token as text and as bytes."""

from __future__ import annotations

from tokenizers import Tokenizer

from qserve.engines.transformers.worker.prompts.bounds import bytes_of_letters

__all__ = ["TokenText"]


class TokenText:
    """How a single token is written in logprobs: a string of its own for every id, and its bytes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._backend = tokenizer
        self._special = {token.content for token in self._backend.get_added_tokens_decoder().values()}
        self._bytes_of_letter = bytes_of_letters()

    def raw(self, token_id: int) -> bytes:
        """The bytes of a token; those of a byte-level BPE may be part of a character."""
        letters = self._backend.id_to_token(token_id)
        if letters is None:
            return b""
        if letters in self._special or any(letter not in self._bytes_of_letter for letter in letters):
            return str(letters).encode()
        return bytes(self._bytes_of_letter[letter] for letter in letters)

    def label(self, token_id: int) -> str:
        """The token as text. Bytes that are no whole characters are spelled `bytes:\\xe4\\xbd`, as OpenAI spells them,
        so that two tokens never share a key of `top_logprobs`.
        """
        raw = self.raw(token_id)
        if not raw:
            return f"token_id:{token_id}"
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
