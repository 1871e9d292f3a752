"""The `Runner` of a Ray cluster: runs workers on the nodes and scales their number with the load."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qserve.cluster.layout import needs_of
from qserve.cluster.placement import Reservations
from qserve.cluster.scaling import Load, Scaling
from qserve.cluster.settings import Bounds, RaySettings
from qserve.cluster.worker import RayWorker
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.record import RunRecord
from qserve.supervisor.runner import Worker
from qserve.supervisor.screen import Screen
from qserve.supervisor.this_machine import checked_vocab_size, event_recorder, facts_of, keep_plan, latency_of
from qserve.worker.base import TcpAddress, WorkerFacts, WorkerState, WorkerStatus

__all__ = ["RayRunner"]

_log = logging.getLogger("qserve.cluster")
_INTERVAL_S = 0.5
_NOWHERE = TcpAddress("", 0)


class RayRunner:
    """Of one service. This process must have joined the cluster (`join.py`)."""

    def __init__(self, settings: RaySettings, bounds: Bounds | None, checkpoints: dict[str, str]) -> None:
        """`checkpoints`: by role the name under which nodes find the checkpoint themselves, or ""."""
        self._settings = settings
        self._bounds = bounds
        self._checkpoints = checkpoints
        self._reservations = Reservations()

    def worker(
        self,
        deployment: ModelDeployment,
        private: Path,
        record: RunRecord,
        screen: Screen,
        chat: WorkerFacts | None = None,
    ) -> RayWorker:
        """See `Runner.worker`. Judges of a reward ask at sockets, so there is no chat model for them here."""
        deployment = replace(deployment, folder=deployment.folder.resolve())  # the nodes have other working directories
        status = WorkerStatus(facts_of(deployment, _NOWHERE))
        keep_plan(deployment, record)
        worker = RayWorker(
            deployment,
            self._checkpoints.get(deployment.role, ""),
            status,
            needs_of(deployment),
            self._reservations,
            self._settings,
            record.log_file(deployment.name),
            event_recorder(record, screen),
        )
        worker.vocab_size = checked_vocab_size(deployment, status.facts)
        worker.is_wanted = self._bounds is None or deployment.role != "chat" or deployment.index < self._bounds.fewest
        status.memory = worker.memory
        status.latency = latency_of(deployment, status, record)
        return worker

    async def scale(self, workers: Sequence[Worker]) -> None:
        """See `Runner.scale`."""
        if self._bounds is None:
            return
        chats = [one for one in workers if isinstance(one, RayWorker) and one.status.role == "chat"]
        scaling = Scaling(self._bounds, chats[0].status.facts.max_num_seqs)
        while True:
            await asyncio.sleep(_INTERVAL_S)
            running = [one for one in chats if one.is_wanted]
            are_ready = all(one.status.state is WorkerState.READY for one in running)
            load = _load_of(chats)
            _want(chats, scaling.wanted(time.monotonic(), len(running), load, are_ready=are_ready))


def _load_of(workers: Sequence[RayWorker]) -> Load:
    loads = [worker.status.load for worker in workers]
    return Load(sum(one.num_outstanding_tokens for one in loads), sum(one.num_outstanding_requests for one in loads))


def _want(workers: Sequence[RayWorker], count: int) -> None:
    """The last ones go first; of those that do not run the first one comes first."""
    running = [one for one in workers if one.is_wanted]
    for worker in [one for one in workers if not one.is_wanted][: max(0, count - len(running))]:
        _log.warning("%s: started, the load needs %d replicas", worker.status.name, count)
        worker.is_wanted = True
    for worker in running[count:]:
        _log.warning("%s: ended, the load needs %d replicas", worker.status.name, count)
        worker.is_wanted = False
