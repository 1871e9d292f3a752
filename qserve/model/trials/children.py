"""Processes that try kernels, one after the other: what came of each kernel, and of those that ended a process."""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from qserve.model.trials.verdicts import Trial, Verdict

__all__ = ["Groups", "first_right", "in_children"]

_log = logging.getLogger("qserve.worker")

Groups = Sequence[Sequence[Trial]]
"""Of each group, trials after one that is right are not wanted."""

_MOST_SECONDS = 120
"""For importing torch, and for each trial, which compiles."""

_PROCESS = "qserve.model.trials.process"


def first_right(group: Sequence[Trial], verdicts: Mapping[Trial, Verdict]) -> Trial | None:
    """Of a group that was tried; None where none is."""
    return next((trial for trial in group if trial in verdicts and verdicts[trial].is_right), None)


def in_children(device: str, groups: Groups, most_s: int = _MOST_SECONDS) -> dict[Trial, Verdict]:
    """Try them in one process, and what is left after one that ended early in the next.

    A kernel that ended a process is not tried at other shapes: it can't be trusted, and each could take `most_s`.
    """
    verdicts: dict[Trial, Verdict] = {}
    left = [list(group) for group in groups]
    while left:
        child = _Child(device, left, most_s)
        if child.last is None:
            reason = f"the process that tries kernels {child.end} before the first"
            return verdicts | {trial: Verdict(reason, is_lasting=False) for group in left for trial in group}
        verdicts |= child.verdicts
        left = _left(left, verdicts)
        if left:
            of, verdict = child.last, verdicts[child.last]
            _log.warning("%s is not tried any further: %s", of.name, verdict.reason)
            verdicts |= {one: verdict for group in left for one in group if one.kernel == of.kernel}
            left = _left(left, verdicts)
    return verdicts


def _left(groups: Groups, verdicts: Mapping[Trial, Verdict]) -> list[list[Trial]]:
    """What has no verdict, of groups in which none is right."""
    open_ones = [group for group in groups if first_right(group, verdicts) is None]
    left = [[trial for trial in group if trial not in verdicts] for group in open_ones]
    return [group for group in left if group]


@dataclass
class _Child:
    """A process that has ended: `end` says how. Of `last`, the trial that it was at, the verdict says it as well."""

    device: str
    groups: list[list[Trial]]
    most_s: int
    verdicts: dict[Trial, Verdict] = field(default_factory=dict)
    end: str = ""
    last: Trial | None = None

    def __post_init__(self) -> None:
        by_key = {trial.key: trial for group in self.groups for trial in group}
        command = [sys.executable, "-X", "faulthandler", "-m", _PROCESS, self.device, str(self.most_s)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            try:
                process.stdin.write(json.dumps([[asdict(one) for one in group] for group in self.groups]).encode())
                process.stdin.close()
            except BrokenPipeError:  # it ended at once; why is told below
                pass
            for line in _lines(process.stdout.fileno(), self.most_s):
                if "begins" in line:
                    self.last = by_key[line["begins"]]
                else:
                    self.verdicts[by_key[line["ends"]]] = Verdict(**line["verdict"])
            is_late = process.poll() is None and not _ends_soon(process)
            process.kill()
        self.end = f"did not end within {self.most_s} s" if is_late else _end_of(process.returncode, self.most_s)
        if self.last is not None and self.last not in self.verdicts:
            # SIGKILL is not the kernel's doing, but that of the system where RAM runs out.
            is_lasting = is_late or process.returncode != -signal.SIGKILL
            self.verdicts[self.last] = Verdict(f"its trial {self.end}", is_lasting=is_lasting)


def _lines(descriptor: int, most_s: int) -> Iterator[dict[str, Any]]:
    """Until the end, or until there was none for so long; the child's own alarm, which is as long, comes first."""
    rest = b""
    while select.select([descriptor], [], [], most_s + 5)[0]:
        read = os.read(descriptor, 65536)
        if not read:
            return
        *lines, rest = (rest + read).split(b"\n")
        yield from map(json.loads, lines)


def _ends_soon(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_of(returncode: int, most_s: int) -> str:
    if returncode == -signal.SIGALRM:
        return f"did not end within {most_s} s"
    return f"ended with {signal.Signals(-returncode).name}" if returncode < 0 else f"ended with status {returncode}"
