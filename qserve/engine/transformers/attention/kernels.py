"""Which kernel reads pages."""

from __future__ import annotations

from typing import Any

from qserve.engine.transformers.attention.pages import PagedKernel, gathered


def decoding_kernel(model: Any) -> PagedKernel | None:
    if model.device.type == "cuda":
        return gathered
    return None
