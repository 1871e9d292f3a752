"""The `Runner` of this machine: starts each engine's workers as child processes."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qserve.core.hardware import Device
from qserve.core.nested import text_config
from qserve.planner.engine import engine_named
from qserve.reward.judges.served import ServedChat
from qserve.service.replicas import num_engines
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.latency import LatencyWatch
from qserve.supervisor.liveness.restarts import WorkerEvents
from qserve.supervisor.record import RunRecord
from qserve.supervisor.residency.worker import OnDemandWorker
from qserve.supervisor.runner import Worker
from qserve.supervisor.screen import Screen
from qserve.supervisor.worker import ANY, CPU, SupervisedWorker
from qserve.worker.base import TcpAddress, UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from qserve.worker.launch import Launch, engine_launch
from qserve.worker.module_launch import ModuleLaunch
from qserve.worker.process import WorkerSpec

__all__ = ["ThisMachine", "checked_vocab_size", "event_recorder", "facts_of", "keep_plan", "latency_of", "local_worker"]


class ThisMachine:
    """The `Runner` whose workers are processes of this machine, all of them wanted all the time."""

    def worker(
        self,
        deployment: ModelDeployment,
        private: Path,
        record: RunRecord,
        screen: Screen,
        chat: WorkerFacts | None = None,
        facts: WorkerFacts | None = None,
    ) -> SupervisedWorker:
        """See `Runner.worker`. Its socket and its key's file lie in the `private` folder.

        `facts` are those of one that runs, which is adopted.
        """
        status = WorkerStatus(facts or facts_of(deployment, UnixAddress(private / f"{deployment.name}.sock")))
        keep_plan(deployment, record)
        log_file = record.log_file(deployment.name)
        worker = local_worker(deployment, status, private, log_file, event_recorder(record, screen), chat)
        status.memory = worker.memory
        status.latency = latency_of(deployment, status, record)
        return worker

    async def scale(self, workers: Sequence[Worker]) -> None:
        """See `Runner.scale`: nothing to do."""


def facts_of(deployment: ModelDeployment, address: UnixAddress | TcpAddress) -> WorkerFacts:
    """What is planned for this worker, with an internal key of its own."""
    limits = deployment.plan.workload
    return WorkerFacts(
        deployment.name,
        deployment.names,
        address,
        secrets.token_urlsafe(32),
        num_engines(deployment.plan) * limits.max_num_seqs,
        limits.max_model_len,
        wire=_wire_of(deployment),
        engine=deployment.plan.engine,
        plan=deployment.plan.to_json(),
        has_report=deployment.role != "chat",
        tokenizer=deployment.tokenizer or deployment.folder,
        vocab_size=_vocab_size(deployment.folder),
        role=deployment.role,
        group=deployment.group,
        loads_on_demand=deployment.on_demand is not None,
    )


def keep_plan(deployment: ModelDeployment, record: RunRecord) -> None:
    """Record the plan of this worker."""
    record.plan(deployment.name, deployment.plan, deployment.names)
    if deployment.engine_args or deployment.verify_quant:
        record.teaches_nothing(deployment.name)


def local_worker(
    deployment: ModelDeployment,
    status: WorkerStatus,
    private: Path,
    log_file: Path,
    report: WorkerEvents,
    chat: WorkerFacts | None = None,
) -> SupervisedWorker:
    """A process of this machine that listens where its facts say, not started yet."""
    launch = _launch(deployment, status.facts, private, chat)
    seen = _visible_devices(deployment.cards, deployment.plan.on_cpu)
    launch.environment = {**launch.environment, **seen, **_threads(deployment.num_cores)}
    kind = SupervisedWorker if deployment.on_demand is None else OnDemandWorker
    worker = kind(status, launch, log_file, report)
    worker.devices = _devices(deployment)
    worker.vocab_size = checked_vocab_size(deployment, status.facts)
    return worker


def checked_vocab_size(deployment: ModelDeployment, facts: WorkerFacts) -> int | None:
    """Of a chat model that must predict text: the first replica's, since all load the same weights."""
    is_asked = deployment.role == "chat" and deployment.load_format != "dummy" and not deployment.index
    return facts.vocab_size if is_asked else None


def latency_of(deployment: ModelDeployment, status: WorkerStatus, record: RunRecord) -> LatencyWatch | None:
    """Planned beside measured latency; None where nothing is planned, or requests of several engines mix."""
    if deployment.speed is None or num_engines(deployment.plan) > 1:
        return None
    return LatencyWatch(deployment.speed, record.kept, status)


def _vocab_size(folder: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = json.loads((folder / "config.json").read_text())
        size = config.get("vocab_size") or text_config(config).get("vocab_size")
        return size if isinstance(size, int) else None
    return None


def _wire_of(deployment: ModelDeployment) -> str:
    """The wire format of its engine; reward and embedding models have qserve's protocols on any."""
    return "" if deployment.role != "chat" else engine_named(deployment.plan.engine).wire


def _launch(deployment: ModelDeployment, facts: WorkerFacts, private: Path, chat: WorkerFacts | None) -> Launch:
    folder, names, plan = deployment.folder.resolve(), deployment.names, deployment.plan
    tcp = facts.address if isinstance(facts.address, TcpAddress) else None
    socket = private / f"{deployment.name}.sock"
    spec = WorkerSpec(
        folder,
        names,
        plan,
        socket,
        facts.key,
        deployment.load_format,
        deployment.verify_quant,
        tcp,
        deployment.packed_cache_bytes,
    )
    file = private / f"{deployment.name}.json"
    if deployment.role != "chat":
        served = None if chat is None else _judge(chat).to_json()
        return ModuleLaunch("qserve.reward", spec, file, reward=deployment.reward.to_json(), served=served)
    return engine_launch(plan.engine).serving(spec, file, deployment.engine_args)


def _judge(chat: WorkerFacts) -> ServedChat:
    assert isinstance(chat.address, UnixAddress), "workers of one service listen at sockets"
    return ServedChat(str(chat.address.path), chat.key, chat.models[0])


def _visible_devices(cards: tuple[Device, ...] | None, on_cpu: bool) -> dict[str, str]:
    """Each worker sees its own cards only: what it takes for the first one is the first of these.

    Numbers mean what they meant in the plan, which lists cards as the driver does: CUDA itself puts fast ones first.
    One that computes on the CPU sees none: for pinned memory transformers would make a context on the first one.
    """
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if on_cpu:
        return {**order, "CUDA_VISIBLE_DEVICES": ""}
    if cards is None or not all(card.uuid for card in cards):
        return order
    return {**order, "CUDA_VISIBLE_DEVICES": ",".join(card.uuid for card in cards)}


def _threads(num_cores: int | None) -> dict[str, str]:
    """Replicas on one CPU share its cores: each with all of them would spend its time waiting for the others."""
    return {} if num_cores is None else {"OMP_NUM_THREADS": str(num_cores), "MKL_NUM_THREADS": str(num_cores)}


def _devices(deployment: ModelDeployment) -> frozenset[str]:
    """What it computes on, as far as that is known: cards by their uuid, the CPU, or any card."""
    if deployment.plan.on_cpu:
        return frozenset({CPU})
    cards = deployment.cards or ()
    return frozenset(card.uuid for card in cards) if cards and all(card.uuid for card in cards) else frozenset({ANY})


def event_recorder(record: RunRecord, screen: Screen) -> WorkerEvents:
    """Writes events of workers to the record, and phases to the screen."""
    latest: dict[str, str] = {}

    def going_on() -> list[str]:
        return [f"{name}: {phase}" for name, phase in latest.items() if phase != WorkerState.READY]

    def end_with_the_last() -> None:
        """What is shown after the start are restarts; none is left."""
        if screen.has_started and not going_on():
            screen.end_progress()

    def report(worker: str, event: str, details: dict[str, Any]) -> None:
        if event == "retry":
            record.plan(worker, details["plan"])
        record.event(worker, event, **{name: value for name, value in details.items() if name != "plan"})
        if event == "phase":
            latest[worker] = details["name"]
            then = (" · ".join(going_on()) or "starting the others") if details["name"] == WorkerState.READY else ""
            screen.phase(f"{worker}: {details['name']}", then)
            end_with_the_last()
        elif event == "failed":
            latest.pop(worker, None)
            screen.phase(f"{worker}: failed", " · ".join(going_on()) or "starting the others")
            end_with_the_last()
        elif event == "retry":
            screen.note(f"{worker}: {details['refused']}\n{worker}: trying once more, {details['reason']}")

    return report
