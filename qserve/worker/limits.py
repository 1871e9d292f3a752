"""Actual limits of a running chat worker, decided by the loaded model and its KV pool."""

from __future__ import annotations

from dataclasses import dataclass

from qserve.wire.prompt_size import ContextLimits

__all__ = ["EngineLimits"]


@dataclass(frozen=True)
class EngineLimits:
    """The answer of GET /v1/qserve/limits, from the worker to the gateway of the same `qserve up`.

    Attributes:
        max_model_len: prompt and answer together, in tokens; less than planned where the KV pool holds less.
        max_num_seqs: sequences at once.
        max_prompt_bytes: UTF-8 bytes above which no prompt fits; None: can't be told by bytes.
        max_positions: the largest max_model_len that the model was made for.
        most_stretched: the largest --context that YaRN stretches it to; None: not known.
    """

    max_model_len: int
    max_num_seqs: int
    max_prompt_bytes: int | None
    max_positions: int
    most_stretched: int | None = None

    @property
    def context(self) -> ContextLimits:
        """Those of a single request."""
        return ContextLimits(self.max_model_len, self.max_prompt_bytes, self.max_positions, self.most_stretched)
