"""What clients send to make a batch, as OpenAI has it."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from qserve.wire.schema import NonEmptyString, Wire

__all__ = ["MAX_KEEP_S", "MIN_KEEP_S", "BatchEndpoint", "CreateBatchRequest"]

BatchEndpoint = Literal[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/reward",
    "/v1/score",
    "/v1/rerank",
]
# As OpenAI bounds how long a file may be kept: an hour to 30 days.
MIN_KEEP_S = 3600
MAX_KEEP_S = 30 * 24 * 3600
_MAX_PAIRS = 16
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_MAX_WINDOW_S = 30 * 24 * 3600


class ExpiresAfter(Wire):
    """When results are forgotten."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=MIN_KEEP_S, le=MAX_KEEP_S)


class CreateBatchRequest(Wire):
    """POST /v1/batches."""

    input_file_id: NonEmptyString
    endpoint: BatchEndpoint
    completion_window: str = Field(
        pattern=r"^[1-9][0-9]{0,5}[smhd]$",
        description="24h as with OpenAI; up to 30d. Requests not answered by then fail",
    )
    metadata: Annotated[dict[str, str], Field(max_length=_MAX_PAIRS)] | None = None
    output_expires_after: ExpiresAfter | None = None

    @property
    def window_s(self) -> int:
        """`completion_window` in seconds, 30 days at most."""
        number, unit = re.fullmatch(r"(\d+)(\w)", self.completion_window).groups()  # type: ignore[union-attr]
        return min(int(number) * _UNITS_S[unit], _MAX_WINDOW_S)
