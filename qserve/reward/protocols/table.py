"""The reward worker's side of the table of reward protocols: by path the request schema, and what makes a job of it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from qserve.reward import protocols
from qserve.reward.protocols.job import JOBS, ModelInfo, ScoreJob
from qserve.wire.reward import table
from qserve.wire.reward.fields import RewardFields

__all__ = ["PROTOCOLS", "Protocol"]


@dataclass(frozen=True)
class Protocol:
    """`job` makes the job of a request that is a `schema`."""

    schema: type[RewardFields]
    job: Callable[[Any, ModelInfo], ScoreJob]


# Each module of this folder marks its functions as they are imported.
for _module in pkgutil.iter_modules(protocols.__path__):
    importlib.import_module(f"{protocols.__name__}.{_module.name}")

PROTOCOLS: Mapping[str, Protocol] = {
    path: Protocol(one.request, JOBS[one.request]) for path, one in table.BY_PATH.items()
}
"""All of them are POST."""
