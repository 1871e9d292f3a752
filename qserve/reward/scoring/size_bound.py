"""Upper bound of a text's bytes for a number of tokens: longer texts are refused or cut before tokenizing.

In a byte-level tokenizer a token is at most as many bytes as the longest word of its vocabulary, so the bound is
arithmetic. Others drop or merge characters, and nothing is said of them.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

__all__ = ["SizeBound"]


class SizeBound:
    """`bytes_per_token` is None where the tokenizer allows no bound. `is_nfc`: it normalizes before it counts."""

    def __init__(self, tokenizer: Any) -> None:
        self.is_nfc = False
        self.bytes_per_token: int | None = None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return
        described = json.loads(backend.to_str())
        normalizer = described.get("normalizer")
        self.is_nfc = normalizer is not None and normalizer.get("type") == "NFC"
        if (normalizer is None or self.is_nfc) and _keeps_every_byte(described):
            self.bytes_per_token = max(map(len, tokenizer.get_vocab()))

    def exceeds(self, text: str, max_tokens: int) -> bool:
        """Whether `text` is sure to have more than `max_tokens` tokens."""
        if self.bytes_per_token is None or len(text) <= max_tokens:
            return False
        text = unicodedata.normalize("NFC", text) if self.is_nfc else text
        return len(text.encode(errors="surrogatepass")) > max_tokens * self.bytes_per_token


def _keeps_every_byte(described: dict[str, Any]) -> bool:
    steps = described.get("pre_tokenizer") or {}
    words = steps.get("pretokenizers", [steps])
    byte_level = any(word.get("type") == "ByteLevel" for word in words)
    removes = any(word.get("behavior") == "Removed" or word.get("type") == "WhitespaceSplit" for word in words)
    strips = any(token.get("lstrip") or token.get("rstrip") for token in described.get("added_tokens", ()))
    return described["model"].get("type") == "BPE" and byte_level and not removes and not strips
