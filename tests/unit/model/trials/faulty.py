"""Trials that go wrong in each way that a kernel's can; their process imports this module by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from qserve.model.trials.verdicts import Trial, TrialRefused

__all__ = ["trial", "try_it"]


def trial(name: str, **arguments: Any) -> Trial:
    """Of `try_it`; `name` says what goes wrong."""
    return Trial.of(name, f"{__name__}:try_it", **arguments)


def try_it(device: str, *, name: str, log: str = "", **_: Any) -> list[str]:
    """Each call leaves a line in the file `log`: the process and `name`."""
    if log:
        with Path(log).open("a") as file:
            file.write(f"{os.getpid()} {name}\n")
    if name == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "hangs":
        time.sleep(600)
    if name == "exits":
        os._exit(3)
    if name == "is out of bounds":
        import torch

        torch.zeros(4, device=device)[torch.tensor([9], device=device)]
    if name == "is wrong":
        raise TrialRefused("it is wrong on this card")
    if name == "is not there":
        raise NotImplementedError("it is not installed")
    if name == "prints":
        print("a library's greeting")
    return [device, name]
