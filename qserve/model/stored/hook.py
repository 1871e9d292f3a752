"""What qserve's hooks into transformers' loading share: they put layers in place before a checkpoint is read."""

from __future__ import annotations

import torch
from transformers.quantizers.base import HfQuantizer

__all__ = ["LayersHook"]


class LayersHook(HfQuantizer):  # type: ignore[misc]
    """See `HfQuantizer`. A hook leaves the dtype alone, and what it loads is neither saved nor trained."""

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False
