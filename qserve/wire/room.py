"""What a program sends to have models leave room for it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from qserve.wire.schema import Wire

__all__ = ["RoomRequest"]

_Bytes = Annotated[int, Field(ge=0, le=1 << 60)]


class RoomRequest(Wire):
    """POST /v1/qserve/room."""

    room: str | None = Field(
        default=None, max_length=64, description="one that is given, to keep it or change its bytes"
    )
    ram_bytes: _Bytes | None = Field(default=None, description="of the RAM; with no bytes at all, all that may leave")
    card_bytes: _Bytes | None = Field(default=None, description="of each card")
    policy: Literal["wait", "refuse"] = Field(default="wait", description="of requests for models without room")
