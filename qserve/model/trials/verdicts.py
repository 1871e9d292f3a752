"""What is tried, what came of it, and the file that keeps it for the next start."""

from __future__ import annotations

import fcntl
import json
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qserve.model.cpu.build import is_ours

__all__ = ["KeptVerdicts", "Trial", "TrialRefused", "Verdict"]

_log = logging.getLogger("qserve.worker")


class TrialRefused(Exception):
    """Raised by a trial's function: the kernel ran and is not for this card; the message says why."""


@dataclass(frozen=True)
class Trial:
    """A kernel that a child runs.

    Attributes:
        name: of the kernel.
        function: "module:function", called with the device and `arguments`; raises where the kernel is not right.
        arguments: a JSON object: shapes and what else the verdict depends on.
    """

    name: str
    function: str
    arguments: str

    @classmethod
    def of(cls, name: str, function: str, **arguments: Any) -> Trial:
        """Of `arguments` that JSON takes; the function is told `name` as well."""
        return cls(name, function, json.dumps({"name": name, **arguments}, sort_keys=True))

    @property
    def kernel(self) -> tuple[str, str]:
        """Whatever its arguments."""
        return self.function, self.name

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.function} {self.arguments}"


@dataclass(frozen=True)
class Verdict:
    """What came of a trial.

    Attributes:
        reason: why the kernel is refused; empty where it is right.
        result: what the function returned.
        is_absent: a package or a release that is not there, which is no fault of the card.
        is_lasting: false where the next start may find otherwise: for want of memory, or of a file.
    """

    reason: str = ""
    result: Any = None
    is_absent: bool = False
    is_lasting: bool = True

    @property
    def is_right(self) -> bool:
        """Whether the kernel may run."""
        return not self.reason


@dataclass(frozen=True)
class KeptVerdicts:
    """The file of one card. `about` is all that a verdict holds for; under another one, none is found."""

    path: Path
    about: Mapping[str, Any]

    def find(self) -> dict[str, Verdict]:
        """By the trial's key. A file that can't be read, or that others may write to, has none; the log says so."""
        try:
            if not is_ours(self.path):
                raise ValueError("another user may write to it")
            document = json.loads(self.path.read_text())
            if document["about"] != self.about:
                return {}
            return {key: Verdict(**one) for key, one in document["verdicts"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            _log.warning("%s can't be used (%s): kernels are tried again", self.path, error)
            return {}

    def add(self, verdicts: Mapping[str, Verdict]) -> None:
        """Keep those that last beside what is there; where that is not possible, the log says so."""
        lasting = {key: one for key, one in verdicts.items() if one.is_lasting}
        if not lasting:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self.path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a worker beside this one adds its own
                self._write({**self.find(), **lasting})
        except OSError as error:
            _log.warning("what came of trying kernels can't be kept, so the next start tries them again: %s", error)

    def _write(self, verdicts: Mapping[str, Verdict]) -> None:
        document = {"about": self.about, "verdicts": {key: asdict(one) for key, one in verdicts.items()}}
        with tempfile.NamedTemporaryFile("w", dir=self.path.parent, suffix=".partial", delete=False) as file:
            file.write(json.dumps(document, indent=1))
        Path(file.name).replace(self.path)
