"""Answers with a status from 400 on, in each API that is spoken here."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

__all__ = ["AnthropicErrorBody", "ErrorBody", "TeiErrorBody"]


class ErrorDetail(BaseModel):
    """`code` is for programs, `message` for people; `param` names the field that is wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """Every answer with a status from 400 on."""

    error: ErrorDetail


class AnthropicErrorDetail(BaseModel):
    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """The same on the routes of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class TeiErrorBody(BaseModel):
    """The same on the route of text-embeddings-inference."""

    error: str
    error_type: str
    code: str
