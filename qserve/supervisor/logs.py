"""Logs of `qserve up`: text, or one JSON object per line for log collectors."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from qserve.errors import QserveError
from qserve.hub.growth import Arrived
from qserve.supervisor.screen import Screen
from qserve.supervisor.screen.console import Row

__all__ = ["JsonLines", "LoggedScreen", "log_event", "logged_failures", "set_up"]

_events = logging.getLogger("qserve.events")
_screen = logging.getLogger("qserve.screen")
_TEXT = "%(asctime)s %(levelname)s %(name)s %(message)s"
_FIELDS = ("request", "event", "rows")


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message"}`, then what the record brought as `extra`.

    A request's fields (`request_id`, `route`, `status`, `ms`, …) and an event's (`worker`, `event`, …) stand beside
    these, not below. `time` is UTC in RFC 3339, `error` a traceback where there was one.
    """

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _FIELDS:
            line |= {key: value for key, value in getattr(record, name, {}).items() if key not in line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class LoggedScreen(Screen):
    """Writes screen output as log lines, so that all output is JSON."""

    def note(self, text: str) -> None:
        _screen.info(text)

    def phase(self, name: str, then: str = "") -> None:
        """Nothing: supervisor events are logged already."""

    def progress(self, name: str, arrived: Arrived) -> None:
        """Nothing."""

    def ready(self, rows: Sequence[Row]) -> None:
        by_name: dict[str, str] = {}
        for name, text in rows:
            # "" continues the row before; a second model has rows of the same names.
            key = name.lower() or next(reversed(by_name))
            by_name[key] = f"{by_name[key]}\n{text}" if key in by_name else text
        _screen.info("qserve is ready after %.1f s", self.seconds, extra={"rows": by_name})


def log_event(worker: str, event: str, details: Mapping[str, Any]) -> None:
    """Log an event of a worker: text with its scalar details, JSON with all."""
    if _events.isEnabledFor(logging.INFO):
        plain = " ".join(f"{name}={value}" for name, value in details.items() if isinstance(value, str | int | float))
        fields = {"worker": worker, "event": event, **details}
        _events.info("%s", f"{worker} worker: {event} {plain}".rstrip(), extra={"event": fields})


def set_up(level: str, log_format: Literal["text", "json"], *, is_verbose: bool = False) -> Screen:
    """Set up logging to standard error; returns the matching screen. A log of JSON always has all rows."""
    if log_format == "text":
        logging.basicConfig(level=level.upper(), format=_TEXT)
        return Screen(is_verbose=is_verbose)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.captureWarnings(True)
    _screen.setLevel(logging.INFO)  # a user acts on it, whatever --log-level is
    return LoggedScreen(is_verbose=True)


@contextlib.contextmanager
def logged_failures(log_format: Literal["text", "json"]) -> Iterator[None]:
    """Logs the error that ends the command if the log is JSON; otherwise the command line prints it."""
    try:
        yield
    except QserveError as error:
        if log_format == "text":
            raise
        _screen.error("%s", error, extra={"event": {"exit_status": error.exit_status}})
        sys.exit(error.exit_status)
