"""The commands that come after a training run: one serves what was trained, one resumes a run that was stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

__all__ = ["resume_command", "serve_command"]

_MASKED = "***"
"""In the place of a secret in a command that was stored (records.py: StoredRun)."""


def serve_command(method: str, output: str) -> str:
    """Of the model that a run of `method` saved in the folder `output`."""
    return f"qserve up {'--reward' if method == 'reward' else '--model'} {shlex.quote(output)}"


def resume_command(output: Path, words: Sequence[str]) -> str:
    """`words` are what was typed behind `qserve`; with the folder and --resume, and without flags whose secret is
    masked: the mask would be taken for the secret.
    """
    kept = [word for word in _unmasked(words) if word != "--resume"]
    named = any(word.partition("=")[0] == "--output" for word in kept)
    return shlex.join(["qserve", *kept, *([] if named else ["--output", str(output)]), "--resume"])


def _unmasked(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if _MASKED not in word:
            kept.append(word)
        elif not word.startswith("--") and kept and kept[-1].startswith("--"):
            kept.pop()  # the flag whose value it is
    return kept
