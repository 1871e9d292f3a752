"""How a request fails in a worker while the others continue. What HTTP calls it is `qserve.wire.errors`'s business."""

from __future__ import annotations

from qserve.errors import RequestFailed

__all__ = ["NOT_A_NUMBER", "EngineError", "PromptRefused", "SequenceFailed", "WorkerStopping"]

NOT_A_NUMBER = "the model's output is not a number; the checkpoint or its dtype is broken, try --dtype float32"


class EngineError(RequestFailed):
    """What an engine answers in the place of tokens or scores."""

    code: str = "generation_failed"


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
