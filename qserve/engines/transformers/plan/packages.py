"""Which packages the transformers engine needs for a quantization, and which of them are there."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.hardware import Hardware
from qserve.core.schemes import SCHEMES
from qserve.packages import install_command
from qserve.planner.candidate import Candidate

__all__ = ["lacking", "package_notes"]

# What the set-up installs: taken for what will be there where nobody can look.
_SET_UP = frozenset({"bitsandbytes", "compressed-tensors"})


def lacking(scheme: str, hardware: Hardware) -> tuple[str, ...]:
    """Packages that `scheme` needs and that are not there; of cards that are described, that no set-up installs."""
    there = _SET_UP if hardware.packages is None else hardware.packages
    return tuple(name for name in SCHEMES[scheme].packages if name not in there)


def package_notes(candidate: Candidate) -> Iterator[str]:
    """What has to be installed before this candidate is served, and what was passed over for want of a package."""
    if candidate.on_cpu:
        return
    scheme = candidate.quant.scheme
    missing = lacking(scheme, candidate.hardware)
    if missing:
        yield f"{scheme} on the transformers engine needs more than the set-up installs: {install_command(*missing)}"
    for passed in _passed_over(candidate):
        needs = install_command(*lacking(passed, candidate.hardware))
        yield f"A calibrated {passed} checkpoint was not taken: on the transformers engine it needs {needs}"


def _passed_over(candidate: Candidate) -> Iterator[str]:
    """Calibrated 4-bit formats, where bitsandbytes quantizes in flight in their place."""
    in_flight = candidate.quant.in_flight and SCHEMES[candidate.quant.scheme].bits == 4
    if in_flight and candidate.request.quant != candidate.quant.scheme and lacking("awq", candidate.hardware):
        yield "awq"
