"""Verdicts on kernels: those that are kept, and for the others a child that tries them."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from qserve.detect.nvml import driver_version
from qserve.model.cpu.build import cache_folder
from qserve.model.trials.children import Groups, in_children
from qserve.model.trials.process import attempt
from qserve.model.trials.verdicts import KeptVerdicts, Trial, Verdict
from qserve.version import __version__

__all__ = ["tried"]

_log = logging.getLogger("qserve.worker")

# What a verdict depends on beside the card: distributions, and our own code.
_PACKAGES = ("torch", "triton", "transformers", "bitsandbytes", "flash-attn", "flash-attn-3", "kernels")
_SOURCES = (
    "model/cuda",
    "model/fp8",
    "model/trials",
    "engines/transformers/kernels",
    "engines/transformers/worker/attention",
    "engines/transformers/worker/decoding",
    "engines/transformers/worker/sampling",
)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")
# What this process does not try again, and the next one does: later there is less memory.
_of_this_time: dict[str, Verdict] = {}


def tried(device: torch.device, groups: Groups, *, afresh: bool = False) -> dict[Trial, Verdict]:
    """A verdict on each trial that is wanted, in a process of its own where `device` is a card that is there.

    `afresh`: whatever is kept; what comes of it is kept. Without a card there is no context to lose, and all is tried
    here.
    """
    if device.type != "cuda" or not torch.cuda.is_available():
        return _here(str(device), groups)
    kept = _kept(device)
    known = {} if afresh else {**_of_this_time, **kept.find()}
    wanted = [one for one in (_unknown(group, known) for group in groups) if one]
    new: dict[Trial, Verdict] = {}
    if wanted:
        _log.info("trying %d kernels in a process of their own", sum(map(len, wanted)))
        new = in_children(str(device), wanted)
        kept.add({trial.key: verdict for trial, verdict in new.items()})
        _of_this_time.update({trial.key: verdict for trial, verdict in new.items() if not verdict.is_lasting})
    old = {trial: known[trial.key] for group in groups for trial in group if trial.key in known}
    return {**old, **new}


def _here(device: str, groups: Groups) -> dict[Trial, Verdict]:
    verdicts: dict[Trial, Verdict] = {}
    for group in groups:
        for trial in group:
            verdicts[trial] = attempt(trial, device)
            if verdicts[trial].is_right:
                break
    return verdicts


def _unknown(group: Sequence[Trial], known: Mapping[str, Verdict]) -> list[Trial]:
    """Of `group`, before the first that is known to be right."""
    found = []
    for trial in group:
        verdict = known.get(trial.key)
        if verdict is None:
            found.append(trial)
        elif verdict.is_right:
            break
    return found


def _kept(device: torch.device) -> KeptVerdicts:
    about = _about(device)
    name = _NOT_IN_A_NAME.sub("-", about["card"])
    return KeptVerdicts(cache_folder() / "kernel-trials" / f"{name}.json", about)


def _about(device: torch.device) -> dict[str, Any]:
    """All that a verdict holds for, beside the arguments of its trial."""
    card = torch.cuda.get_device_properties(device)
    return {
        "card": card.name,
        "capability": f"{card.major}.{card.minor}",
        "memory_bytes": card.total_memory,
        "driver": driver_version(),
        "cuda": torch.version.cuda,
        "packages": {name: _release(name) for name in _PACKAGES},
        "qserve": __version__,
        "sources": _sources_digest(),
    }


@cache
def _sources_digest() -> str:
    """Of every module that has a kernel or a trial of one: a clone changes without a new version."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for folder in _SOURCES:
        for source in sorted((root / folder).rglob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:20]


def _release(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
