"""When a request to the hub is made once more, and after how long. Pure but for `patient`."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["MOST_TRIES", "may_pass", "patient", "pause_s", "status_of"]

Found = TypeVar("Found")

_log = logging.getLogger("qserve.hub")

MOST_TRIES = 6
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_LONGEST_ASKED_S = 300.0
"""The hub counts requests over five minutes. Source: huggingface.co/docs/hub/rate-limits."""
_PASSING = frozenset({408, 416, 429})
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS})


def status_of(error: BaseException) -> int:
    """Of the answer that it was raised for; 0 where there was none."""
    return int(getattr(getattr(error, "response", None), "status_code", 0) or 0)


def may_pass(error: BaseException) -> bool:
    """Whether the next try may go better: not where the disk is full, or the hub says no."""
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
        return False
    status = status_of(error)
    return not 400 <= status < 500 or status in _PASSING


def pause_s(error: BaseException, num_failures: int) -> float:
    """Before the next try: what the hub asks for, else twice as long each time."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    asked = str(headers.get("retry-after", ""))
    if asked.isdigit():
        return min(float(asked), _LONGEST_ASKED_S)
    return min(_FIRST_PAUSE_S * 2.0 ** (num_failures - 1), _LONGEST_PAUSE_S)


def patient(ask: Callable[[], Found]) -> Found:
    """What it returns. A hub that answers and is busy is asked again; one that does not answer is told at once."""
    for num_failures in range(1, MOST_TRIES):
        try:
            return ask()
        except Exception as error:
            if not status_of(error) or not may_pass(error):
                raise
            seconds = pause_s(error, num_failures)
            _log.warning("the hub is busy (HTTP %d); it is asked again in %.0f s", status_of(error), seconds)
            time.sleep(seconds)
    return ask()
