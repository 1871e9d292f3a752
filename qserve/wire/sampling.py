"""How tokens are drawn and where an answer ends: the fields that chats, completions and Responses share.

OpenAI's Responses API has few of them; vLLM takes them all there, and so do clients that were written for it.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from qserve.wire.schema import INT64_MAX, CacheSalt, StopString, TokenId, Wire

__all__ = ["SAMPLED", "Sampled"]

MAX_STOP_STRINGS = 16
MAX_STOP_TOKEN_IDS = 4096
_TOKEN_IDS_AS_NAMES: dict[str, Any] = {"propertyNames": {"pattern": "^[0-9]+$"}}


class Sampled(Wire):
    """Absent fields take the model's own generation defaults."""

    temperature: float | None = Field(None, ge=0, le=2, description="0 is greedy")
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=INT64_MAX, description="-1 or 0 keeps all")
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=INT64_MAX)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=10)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = Field(
        None, description="token id to bias", json_schema_extra=_TOKEN_IDS_AS_NAMES
    )
    skip_special_tokens: bool = True
    cache_salt: CacheSalt | None = Field(None, description="vLLM's: cached prefixes are found with the same salt only")


SAMPLED = frozenset(Sampled.model_fields)
