"""Merges Prometheus texts: samples of each worker get a label `worker`, each family one header.

The text format (version 0.0.4) wants all samples of a metric in one group under at most one HELP and one TYPE line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

__all__ = ["CONTENT_TYPE", "merge"]

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+(?:\s+\S+)?)$")
_LABEL = re.compile(r'(?<!\w)([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*("(?:[^"\\]|\\.)*")')
_SUFFIXES = ("_bucket", "_sum", "_count", "_total", "_created")


@dataclass
class _Family:
    comments: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)


def merge(own: str, of_workers: Iterable[tuple[str, str]]) -> str:
    """`own` unlabelled, then (worker's name, its text) each labelled. A line that is no sample is left out."""
    families: dict[str, _Family] = {}
    _collect(families, own, None)
    for worker, text in of_workers:
        _collect(families, text, worker)
    lines: list[str] = []
    for family in families.values():
        if family.samples:
            lines += [*family.comments.values(), *family.samples]
    return "\n".join(lines) + "\n"


def _collect(families: dict[str, _Family], text: str, worker: str | None) -> None:
    current = ""
    for line in text.splitlines():
        if line.startswith(("# HELP ", "# TYPE ")):
            _, kind, current, *_ = line.split(" ", 3)
            families.setdefault(current, _Family()).comments.setdefault(kind, line)
        elif line and not line.startswith("#") and (match := _SAMPLE.match(line)):
            name, labels, value = match.groups()
            if not _belongs(name, current):
                current = name
            sample = line if worker is None else f"{name}{{{_with_worker(labels, worker)}}} {value}"
            families.setdefault(current, _Family()).samples.append(sample)


def _belongs(name: str, family: str) -> bool:
    """Whether a sample is of this family: `x_bucket` is of `x`."""
    return name == family or (name.startswith(family) and name[len(family) :] in _SUFFIXES)


def _with_worker(labels: str | None, worker: str) -> str:
    """A label `worker` of the worker's own, as Prometheus does it on a clash, becomes `exported_worker`."""
    pairs = [f'worker="{worker}"']
    for name, value in _LABEL.findall(labels or ""):
        pairs.append(f"{'exported_worker' if name == 'worker' else name}={value}")
    return ",".join(pairs)
