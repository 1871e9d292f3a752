"""How one sequence fails in a worker while the others continue."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["NOT_A_NUMBER", "SequenceFailed"]

NOT_A_NUMBER = "the model's output is not a number; the checkpoint or its dtype is broken, try --dtype float32"


class SequenceFailed(Exception):
    """One sequence failed in the engine, for example for want of memory. Others continue.

    Attributes:
        status: of the HTTP answer.
        code: the machine's word for it, in the answer's `error`.

    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "generation_failed"
