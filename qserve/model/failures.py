"""How a request fails in a worker while the others continue. What HTTP calls it is `qserve.wire.errors`'s business."""

from __future__ import annotations

__all__ = ["NOT_A_NUMBER", "EngineError", "PromptRefused", "SequenceFailed", "WorkerStopping"]

NOT_A_NUMBER = "the model's output is not a number; the checkpoint or its dtype is broken, try --dtype float32"


class EngineError(Exception):
    """What an engine answers in the place of tokens or scores. Its text is for people.

    Attributes:
        code: the machine's word for it, in the answer's `error`; `qserve.wire.errors.from_failure` has its status.
        param: the field of the request that it is about, if it is about one.

    """

    code: str = "generation_failed"
    param: str | None = None


class SequenceFailed(EngineError):
    """One sequence failed in the engine, for example for want of memory. Others continue."""


class WorkerStopping(SequenceFailed):
    """It waited when the worker stopped, or came later: nothing computes it any more."""

    code = "worker_stopping"

    def __init__(self) -> None:
        super().__init__("the worker is stopping; ask again when it is ready")


class PromptRefused(EngineError):
    """A prompt that can't be run as it was asked for: nothing was begun."""

    def __init__(self, message: str, code: str, param: str) -> None:
        super().__init__(message)
        self.code, self.param = code, param
