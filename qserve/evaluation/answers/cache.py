"""Answers of a running evaluation in the state folder, from which an interrupted one resumes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from dataclasses import asdict
from pathlib import Path

from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel

__all__ = ["answers_stem", "forget_answers", "generations_file", "kept_answers"]

# Of the files: what an earlier version left is asked again. It kept one answer for each eight prompts.
_FORMAT = 2


def answers_stem(cache: Path, served: ServedModel, request: EvalRequest) -> Path:
    """The beginning of lm-eval's cache file. Answers to one seed, of one model, are never taken for another's."""
    asked = {**asdict(request), "background": None, "format": _FORMAT}
    request_json = json.dumps(asked, sort_keys=True, default=str)
    return cache / f"{served.fingerprint()}-{hashlib.sha256(request_json.encode()).hexdigest()[:16]}"


def generations_file(stem: Path, name: str) -> Path:
    """Where thoughts and outcomes of the answers of one pass lie; `stem` is `answers_stem`'s."""
    return stem.with_name(f"{stem.name}-{name}.generations")


def kept_answers(cache: Path, served: ServedModel, request: EvalRequest) -> int:
    """How many answers an interrupted evaluation of just this left in `cache`."""
    return sum(_count(file) for file in _files(cache, served, request))


def forget_answers(cache: Path, served: ServedModel, request: EvalRequest) -> None:
    """An evaluation that is finished and kept needs its answers no more: the next one asks anew."""
    for ending in ("_rank0.db", ".generations"):
        for file in _files(cache, served, request, ending):
            file.unlink(missing_ok=True)


def _files(cache: Path, served: ServedModel, request: EvalRequest, ending: str = "_rank0.db") -> list[Path]:
    """One a pass; `_rank0.db` is lm-eval's own ending."""
    stem = answers_stem(cache, served, request)
    return sorted(stem.parent.glob(f"{stem.name}-*{ending}"))


def _count(file: Path) -> int:
    try:
        with contextlib.closing(sqlite3.connect(file)) as connection:
            return int(connection.execute("SELECT COUNT(*) FROM unnamed").fetchone()[0])
    except sqlite3.Error:
        file.unlink()  # cut off before it held anything
        return 0
