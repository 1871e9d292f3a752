"""The process that tries kernels: python -m qserve.model.trials.process DEVICE MOST_SECONDS < groups

Standard input has a JSON list of groups, each a list of `Trial`s in order, of which none is tried after one that is
right. Standard output has a line before each trial, `{"begins": key}`, and one after it, `{"ends": key, "verdict": …}`:
whoever reads knows of a process that died, or that was killed, what it was at. What a compiler says is in standard
error. After an error that its card does not recover from the process ends, and what is left belongs to another one.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TextIO

from qserve.engines.transformers.kernels.compiler_errors import reason_of
from qserve.model.trials.verdicts import Trial, TrialRefused, Verdict

__all__ = ["attempt", "try_groups"]


def attempt(trial: Trial, device: str) -> Verdict:
    """Run `trial` in this process. What it raised is written to standard error, whole."""
    module, _, name = trial.function.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(device, **json.loads(trial.arguments))
        _synchronize(device)
    except NotImplementedError as error:  # as a package that is not there
        return Verdict(
            str(error) or reason_of(error), is_absent=True, is_lasting=not _is_of_the_moment(error.__cause__)
        )
    except TrialRefused as error:
        return Verdict(str(error) or reason_of(error))
    except Exception as error:
        traceback.print_exc()
        return Verdict(reason_of(error), is_lasting=not _is_of_the_moment(error))
    return Verdict(result=result)


def try_groups(groups: Sequence[Sequence[Trial]], device: str, tell: Callable[[dict[str, Any]], None]) -> None:
    """Try them until the card is of no use any more; `tell` hears of each."""
    for group in groups:
        for trial in group:
            tell({"begins": trial.key})
            verdict = attempt(trial, device)
            tell({"ends": trial.key, "verdict": asdict(verdict)})
            if verdict.is_right:
                break
            if _is_broken(device):
                return


def _is_of_the_moment(error: BaseException | None) -> bool:
    """A file that is not there yet, or memory that others hold."""
    if isinstance(error, (OSError, MemoryError)):
        return True
    if error is None or "torch" not in sys.modules:  # it takes seconds to import, and raised nothing
        return False
    from qserve.model.out_of_memory import is_out_of_memory

    return is_out_of_memory(error)


def _synchronize(device: str) -> None:
    """Raises what a kernel did wrong after its launch."""
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize(device)


def _is_broken(device: str) -> bool:
    """Every call fails after an illegal address."""
    try:
        _synchronize(device)
    except Exception:
        return True
    return False


def _teller(out: TextIO, most_s: int) -> Callable[[dict[str, Any]], None]:
    def tell(line: dict[str, Any]) -> None:
        signal.alarm(most_s)
        out.write(json.dumps(line) + "\n")
        out.flush()

    return tell


def main() -> None:
    """See above."""
    device, most_s = sys.argv[1], int(sys.argv[2])
    signal.alarm(most_s)  # ends a process whose parent has gone as well: the kernel does it, whatever it hangs in
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print
    groups = [[Trial(**one) for one in group] for group in json.load(sys.stdin)]
    tell = _teller(out, most_s)
    if device.startswith("cuda"):
        import torch

        torch.cuda.set_device(device)
    try_groups(groups, device, tell)


if __name__ == "__main__":
    main()
