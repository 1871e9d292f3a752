"""The exceptions of qserve, as a tree.

QserveError                  anything a user can act on; the CLI prints it without a traceback
├── UsageError               the input is wrong (exit status 2)
│   ├── ModelNotFound        no such folder, alias, hub id, or no network to ask
│   ├── BrokenCheckpoint     the folder is there, but what it holds can't be loaded
│   ├── UnknownArchitecture  config.json names an architecture that nobody taught us
│   └── MissingExtra         an optional package is needed; the message holds the install command
├── DoesNotFit               the plan needs more memory than there is (exit status 3)
├── PortInUse                somebody else listens there (exit status 4)
├── WorkerFailed             a worker could not be started, or kept dying (exit status 5)
└── UnusableResult           an evaluation has figures that must not be believed (exit status 6)

RequestFailed                what a request gets in the place of its answer, with a code for the machine

Each message says what was seen, what is allowed, and which flag or change fixes it.
"""

from __future__ import annotations

from qserve.packages import install_command

__all__ = [
    "BrokenCheckpoint",
    "DoesNotFit",
    "MissingExtra",
    "ModelNotFound",
    "PortInUse",
    "QserveError",
    "RequestFailed",
    "UnknownArchitecture",
    "UnusableResult",
    "UsageError",
    "WorkerFailed",
]


class QserveError(Exception):
    """Something a user can act on. `exit_status` is what the command line returns for it."""

    exit_status = 1


class RequestFailed(Exception):
    """One request can't be answered; others can. Its text is for people.

    Attributes:
        code: the machine's word for it, in the answer's `error`; `qserve.wire.errors.from_failure` has its status.
        param: the field of the request that it is about, if it is about one.
    """

    code: str = "failed"
    param: str | None = None


class UsageError(QserveError):
    """The input is wrong."""

    exit_status = 2


class ModelNotFound(UsageError):
    """No such folder, alias or hub id, or no network to ask for it."""


class BrokenCheckpoint(UsageError):
    """The checkpoint folder is there, but a file in it is missing, truncated or of the wrong shape."""


class UnknownArchitecture(UsageError):
    """config.json names an architecture whose memory nobody taught us; it is named, not guessed."""


class MissingExtra(UsageError):
    """An optional package is needed, or several."""

    def __init__(self, package: str, needed_for: str, *others: str) -> None:
        what = f"packages {', '.join((package, *others))}, which are" if others else f"package {package}, which is"
        super().__init__(
            f"{needed_for} needs the {what} not installed. Install {'them' if others else 'it'}: "
            f"{install_command(package, *others)} (`make setup` in a clone installs all)"
        )


class DoesNotFit(QserveError):
    """The plan needs more memory than the machine has, by `short_bytes` where that is known (else 0)."""

    exit_status = 3

    def __init__(self, message: str, short_bytes: int = 0) -> None:
        super().__init__(message)
        self.short_bytes = short_bytes


class PortInUse(QserveError):
    """Another program listens on the port that was asked for."""

    exit_status = 4


class WorkerFailed(QserveError):
    """A worker could not be started, or died more often than it may be restarted."""

    exit_status = 5


class UnusableResult(QserveError):
    """An evaluation is finished and kept, and too many of its answers could not be scored."""

    exit_status = 6
