"""Processes of tests: what one was started with, asked of one that may have ended since; and one that starts sooner."""

from __future__ import annotations

import sys

import psutil

__all__ = ["environment", "is_running", "python_for", "words"]


def words(process: psutil.Process) -> list[str]:
    """Its command line; empty once it has ended, also where nobody has waited for it yet."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def environment(process: psutil.Process) -> dict[str, str]:
    """Its environment; empty once it has ended."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def python_for(code: str) -> list[str]:
    """The command of a Python for `code`, which trains: without what transformers and TRL would import for nothing.

    That is scikit-learn and vLLM, with several seconds of imports of their own.
    """
    return [sys.executable, "-c", f"import sys; sys.modules['sklearn'] = sys.modules['vllm'] = None; {code}"]


def is_running(pid: int) -> bool:
    """Whether it computes; a process may end between two looks at it, and a zombie has ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
