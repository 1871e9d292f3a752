"""Sets the environment, stderr and loggers that lm-eval reads, and restores them afterwards."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from qserve.evaluation.tasks import quiet
from qserve.worker.quick_imports import quick_imports

__all__ = ["REFUSAL", "LmEvalLog", "lm_eval_environment"]

_MOST_CHARACTERS = 300
# Hints about lm-eval's own command line, whose flags are not ours, or which repeat what was asked.
_HINTS = ("Custom kwargs can be passed to `--metadata`", "specified through cli", "Overwriting default num_fewshot")
REFUSAL: ContextVar[str] = ContextVar("refusal", default="")
"""What the server said in place of the answer that this task waited for."""


class LmEvalLog(logging.Handler):
    """What lm-eval and its libraries said: every line to a file, warnings that may matter counted by their text.

    `last_refusal` is what the server answered in place of an answer: lm-eval logs it and raises an error without it.
    """

    def __init__(self, file: Path | None = None) -> None:
        super().__init__(logging.WARNING)
        self.last_refusal = ""
        self.warnings: Counter[str] = Counter()
        self._file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        text = record.getMessage()
        _, found, refusal = text.partition("Response text: ")
        if found:
            self.last_refusal = refusal.removesuffix(". Retrying...")[:500]
            REFUSAL.set(self.last_refusal)
        if not record.name.startswith("transformers") and not any(hint in text for hint in _HINTS):
            self.warnings[" ".join(text.split())[:_MOST_CHARACTERS]] += 1
        self.write(f"{record.levelname} {record.name}: {text}\n")

    def write(self, text: str) -> None:
        """Append to the file, less the progress bars, which overwrite themselves on a screen."""
        if self._file is None or not text.strip() or "\r" in text:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as log:
            log.write(text if text.endswith("\n") else f"{text}\n")


class _Stderr(io.TextIOBase):
    def __init__(self, log: LmEvalLog) -> None:
        self._log = log

    def write(self, text: str) -> int:
        self._log.write(text)
        return len(text)


@contextlib.contextmanager
def lm_eval_environment(api_key: str, log: LmEvalLog) -> Iterator[None]:
    """lm-eval reads the key from the environment, draws bars for single items (the caller draws one for all), and asks
    git about whatever folder the user stands in.
    """
    with quick_imports():
        from lm_eval import evaluator

    variables = {"OPENAI_API_KEY": api_key or "none", "TOKENIZERS_PARALLELISM": "false"}
    before = {name: os.environ.get(name) for name in variables}
    logger, ask_git = logging.getLogger("lm_eval"), evaluator.get_git_commit_hash
    # The tokenizer warns of each text that is longer than a request: they are cut into windows.
    theirs = logging.getLogger("transformers")
    handlers, theirs.handlers = theirs.handlers, [log]
    os.environ.update(variables)
    evaluator.get_git_commit_hash = lambda: None
    try:
        with quiet(), contextlib.redirect_stderr(_Stderr(log)):
            logger.setLevel(logging.WARNING)
            logger.addHandler(log)
            yield
    finally:
        logger.removeHandler(log)
        theirs.handlers = handlers
        evaluator.get_git_commit_hash = ask_git
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
