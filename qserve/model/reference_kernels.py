"""The warning about linear attention's reference kernels, where it tells a user nothing.

transformers computes Gated DeltaNet with flash-linear-attention and causal-conv1d where they are installed, else in
plain torch, and warns of that once per function. Those packages are for GPUs; on a CPU plain torch is the only way.
"""

from __future__ import annotations

import logging

import torch

__all__ = ["expect_on"]

_LOGGER = "transformers.integrations.hub_kernels"
_WARNING = "is falling back to its reference PyTorch implementation"


def expect_on(device: torch.device) -> None:
    """On a CPU, that one warning is not written. On a GPU it stays: it names the packages to install."""
    if device.type == "cpu":
        logging.getLogger(_LOGGER).addFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return _WARNING not in record.getMessage()
