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

__all__ = ["OF_VECTORS", "PROTOCOLS", "Protocol"]


@dataclass(frozen=True)
class Protocol:
    """`job` makes the job of a request that is a `schema`."""

    schema: type[RewardFields]
    job: Callable[[Any, ModelInfo], ScoreJob]


# Each module of this folder marks its functions as they are imported.
for _module in pkgutil.iter_modules(protocols.__path__):
    importlib.import_module(f"{protocols.__name__}.{_module.name}")


def _found(rows: Mapping[str, table.RewardProtocol]) -> Mapping[str, Protocol]:
    return {path: Protocol(one.request, JOBS[one.request]) for path, one in rows.items()}


PROTOCOLS = _found(table.BY_PATH)
"""Of a model that scores. All of them are POST."""
OF_VECTORS = _found(table.OF_VECTORS)
"""Of an embedding model."""
