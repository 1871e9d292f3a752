"""Blocks imports of packages that transformers and torch would load although no worker uses them.

They come with others (scikit-learn, SciPy and pandas with lm-eval, triton with torch's builds) and took 206 of the
557 MiB that a worker's process held before it had loaded anything, and two seconds of its start. A package that can't
be imported counts as not installed for both libraries.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from qserve.core.schemes import SCHEMES

__all__ = ["leave_out", "leave_out_unused", "unused_by"]

# transformers.generation.candidate_generator imports its `roc_curve`, and pandas and SciPy come with it.
_UNUSED: tuple[str, ...] = ("sklearn",)
# Losses of other models than ours; what unpacks a quantized format may ask for it.
_UNUSED_WITHOUT_QUANTIZATION = ("scipy",)
# Kernels for cards; what unpacks a quantized format may ask for it. bitsandbytes does neither on a CPU for its formats.
_UNUSED_ON_A_CPU = ("triton",)


def leave_out_unused(document: Mapping[str, Any]) -> None:
    """`leave_out` in a process that was told `document`.

    Where a `WorkerSpec` stands in `document` its plan says what its model needs. Only for a process of our own: whoever
    imports qserve as a library may need them.
    """
    leave_out(*unused_by(document))


def unused_by(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The packages that `leave_out_unused` leaves out."""
    plan = document.get("plan")
    if plan is None:
        return _UNUSED
    scheme, on_cpu = SCHEMES[plan["quant"]["scheme"]], plan["on_cpu"]
    if scheme.bits < 16 and not (scheme.by_bitsandbytes and on_cpu):
        return _UNUSED
    return _UNUSED + _UNUSED_WITHOUT_QUANTIZATION + (_UNUSED_ON_A_CPU if on_cpu else ())


def leave_out(*names: str) -> None:
    """From now on this process has none of these packages, unless they are imported already."""
    for name in names:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # importlib: None stops the import
