"""Pages of the transformers engine's KV pool: the plan counts whole ones, and the worker makes them."""

from __future__ import annotations

__all__ = ["FLASH_PAGE_TOKENS", "PAGE_TOKENS", "plan_page_tokens", "whole_pages"]

PAGE_TOKENS = 32
"""Tokens in a page. Smaller pages share more of a prefix and waste less at the end; 256 is the library's default."""

FLASH_PAGE_TOKENS = 256
"""flash-attn 2 reads pages of whole multiples of this alone (flash_api.cpp: "page block size must be divisible by")."""


def plan_page_tokens(*, on_cpu: bool) -> int:
    """What a planned length is rounded up to. On cards the larger page, of which the smaller is a part: whether
    flash-attn can be used, only the loaded model says.
    """
    return PAGE_TOKENS if on_cpu else FLASH_PAGE_TOKENS


def whole_pages(num_tokens: int, page_tokens: int) -> int:
    """Tokens of the pages that hold `num_tokens`."""
    return -(-num_tokens // page_tokens) * page_tokens
