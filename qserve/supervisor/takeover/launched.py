"""What the workers of a service were started from. A service takes them over if it would start the same ones."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Launched", "asked_of", "differences", "environment_of", "files_of"]

# Of variables that change what a worker computes, or whether it starts; the others are of the shell and its user.
_PREFIXES = (
    "CC",
    "CUBLAS",
    "CUDA",
    "FLASH",
    "GLOO_",
    "GOMP_",
    "HF_",
    "HUGGINGFACE",
    "KMP_",
    "LD_",
    "MALLOC_",
    "MKL_",
    "NCCL_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "PYTORCH",
    "TORCH",
    "TRANSFORMERS_",
    "TRITON_",
    "VLLM_",
    "XDG_CACHE_HOME",
)
_OF_NO_WORKER = ("PYTHONUNBUFFERED",)


@dataclass(frozen=True)
class Launched:
    """What a service starts its workers from.

    Attributes:
        asked: the options that plans and workers depend on, by name, as text.
        versions: releases of qserve, Python and the packages that workers import.
        environment: digests of the variables that workers depend on; not their values, of which some are secret.
    """

    asked: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def differences(old: Launched, new: Launched) -> list[str]:
    """In what the new one differs, a line each; none where it would start the same workers. Pure."""
    return [
        *_changed(old.asked, new.asked, lambda name: f"--{name.replace('_', '-')}"),
        *_changed(old.versions, new.versions, str),
        *(
            f"the environment variable {name} has another value"
            for name in sorted({*old.environment, *new.environment})
            if old.environment.get(name) != new.environment.get(name)
        ),
    ]


def asked_of(values: Mapping[str, Any], leave_out: Iterable[str]) -> dict[str, str]:
    """The options as text, but for `leave_out` and those that were not given; paths as they are from anywhere."""
    without = set(leave_out)
    return {name: _text(value) for name, value in values.items() if name not in without and value not in (None, ())}


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Digests of the variables that workers depend on."""
    named = {name: value for name, value in variables.items() if name.startswith(_PREFIXES)}
    return {name: _digest(value.encode()) for name, value in named.items() if name not in _OF_NO_WORKER}


def files_of(folder: Path) -> str:
    """A digest of the names, sizes and times of the files of a checkpoint. Raises OSError where there is no folder."""
    lines = []
    for one in sorted(folder.iterdir()):
        about = one.stat()
        lines.append(f"{one.name} {about.st_size} {about.st_mtime_ns}")
    return _digest("\n".join(lines).encode())


def _changed(old: Mapping[str, str], new: Mapping[str, str], word: Any) -> Iterator[str]:
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            yield f"{word(name)}: {old.get(name, 'not given')} there, {new.get(name, 'not given')} here"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(_text, value))
    if isinstance(value, str | Path) and value and os.path.lexists(value):
        return str(Path(value).resolve())
    return str(value)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
