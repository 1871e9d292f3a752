"""What an administrator sends to load a LoRA adapter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from qserve.wire.schema import NonEmptyString, Wire

__all__ = ["LoadAdapterRequest"]

_MAX_NAME, _MAX_PATH = 256, 4096
_NAME, _PATH = r"^[!-~]([ -~]*[!-~])?$", r"^/[^\x00]*$"


class LoadAdapterRequest(Wire):
    """POST /v1/qserve/adapters. `load_inplace` is vLLM's name for it."""

    name: Annotated[
        NonEmptyString, Field(max_length=_MAX_NAME, pattern=_NAME, description="the model's name in requests")
    ]
    path: Annotated[
        NonEmptyString, Field(max_length=_MAX_PATH, pattern=_PATH, description="its folder on the server's machine")
    ]
    model: str | None = Field(default=None, description="the model under it, where several take adapters")
    load_inplace: bool = Field(default=False, description="in place of the adapter of this name, if there is one")
