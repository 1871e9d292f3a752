"""How many bytes a token stands for at most, told from a tokenizer's own file; pure arithmetic.

A text of more than `max_model_len` times that many bytes can't fit and need not be tokenized to find that out.
"""

from __future__ import annotations

from typing import Any

__all__ = ["bytes_of_letters", "max_bytes_per_token"]

# What composing characters (NFC) shortens a text by at most: three Hangul letters of 3 bytes become a syllable of 3.
_NFC_SHRINKS = 3


def max_bytes_per_token(tokenizer: dict[str, Any]) -> int | None:
    """Bytes of UTF-8 that one token covers at most; None where the tokenizer drops or rewrites text.

    Args:
        tokenizer: tokenizer.json as JSON. Byte-level BPE is understood, with NFC or no normalizer: Qwen's, and most of
            today's. Such a tokenizer loses nothing, so a text has as many bytes as its tokens have together.

    """
    model = tokenizer.get("model") or {}
    shrinks = {None: 1, "NFC": _NFC_SHRINKS}.get((tokenizer.get("normalizer") or {}).get("type"))
    letters = set(bytes_of_letters())
    added = tokenizer.get("added_tokens") or []
    if (
        model.get("type") != "BPE"
        or shrinks is None
        or not _is_byte_level(tokenizer.get("pre_tokenizer") or {})
        or not letters <= set(model["vocab"])
        or any(
            token.get("lstrip") or token.get("rstrip") for token in added
        )  # they take any number of blanks with them
    ):
        return None
    longest = max(map(len, model["vocab"]))  # a letter of the byte-level alphabet is a byte
    return shrinks * max([longest, *(len(token["content"].encode()) for token in added)])


def _is_byte_level(pre_tokenizer: dict[str, Any]) -> bool:
    parts = pre_tokenizer.get("pretokenizers") or [pre_tokenizer]
    splits = all(part.get("behavior") == "Isolated" for part in parts if part.get("type") == "Split")
    kinds = {part.get("type") for part in parts}
    return splits and "ByteLevel" in kinds and kinds <= {"Split", "ByteLevel", "Digits"}


def bytes_of_letters() -> dict[str, int]:
    """GPT-2's printable letter for each byte, inverted (the alphabet of every byte-level BPE, Qwen's among them)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable}
    letters.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return letters
