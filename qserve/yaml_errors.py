"""What is wrong with a YAML file, as one line of a message."""

from __future__ import annotations

import os

__all__ = ["yaml_problem"]

_LONGEST = 300


def yaml_problem(error: Exception) -> str:
    """`line 2, column 1: expected ':'` of yaml's errors; of others what the system or Python says. No line breaks."""
    if isinstance(error, OSError):
        return error.strerror or os.strerror(error.errno or 0)
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    return f"{where}{' '.join(str(problem or error).split())}"[:_LONGEST]
