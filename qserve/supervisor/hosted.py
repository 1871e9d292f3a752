"""What is to be hosted, and the supervised worker that comes of it: one place that knows which engine starts how."""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qserve.core.hardware import Device
from qserve.engine.base import Api, UnixAddress, WorkerEndpoint
from qserve.engine.launch import Launch, engine_launch
from qserve.engine.own_launch import OwnLaunch
from qserve.engine.process import WorkerSpec
from qserve.errors import UsageError
from qserve.planner.plan import Plan
from qserve.planner.replicas import num_engines
from qserve.planner.speed.estimate import Replica
from qserve.reward.judges.served import ServedChat
from qserve.reward.settings import RewardSettings
from qserve.supervisor.latency import LatencyWatch
from qserve.supervisor.record import RunRecord
from qserve.supervisor.screen import Screen
from qserve.supervisor.worker import ANY, CPU, SupervisedWorker, WorkerEvents

__all__ = ["Hosted", "supervised"]


@dataclass(frozen=True)
class Hosted:
    """A model to serve.

    Attributes:
        role: what it is for; names its worker, with the index of the replica where there are several.
        folder: the checkpoint on disk; with `load_format` dummy its config.json is enough.
        names: what requests may call it; the first is canonical.
        plan: how it runs.
        engine_args: the user's own flags of the engine, as one string (vLLM).
        load_format: "dummy" runs on random weights.
        verify_quant: measure what quantizing while loading costs.
        reward: how a reward model is asked.
        cards: what the worker may see of this machine's; None: all.
        speed: its steps as planned; None where nothing is planned of its speed.
        tokenizer: folder with the tokenizer's files, where that is not `folder`.
        index: of this replica among the `num_replicas` of its role.
        num_cores: that it may compute on; None: all of the machine.
    """

    role: Literal["chat", "reward"]
    folder: Path
    names: tuple[str, ...]
    plan: Plan
    engine_args: str = ""
    load_format: Literal["auto", "dummy"] = "auto"
    verify_quant: bool = False
    reward: RewardSettings = field(default_factory=RewardSettings)
    cards: tuple[Device, ...] | None = None
    tokenizer: Path | None = None
    speed: Replica | None = None
    index: int = 0
    num_replicas: int = 1
    num_cores: int | None = None

    @property
    def name(self) -> str:
        """Of its worker: `chat`, or `chat-1` where there are several."""
        return self.role if self.num_replicas == 1 else f"{self.role}-{self.index}"

    def __post_init__(self) -> None:
        for name in self.names:
            if not name.strip() or not name.isprintable():
                flag = "--served-model-name" if self.role == "chat" else "--served-reward-name"
                raise UsageError(
                    f"{name!r} is no name that can stand in requests and on a terminal: it must be printable, and more "
                    f"than spaces. Choose one with {flag}"
                )


def supervised(
    hosted: Hosted, private: Path, record: RunRecord, screen: Screen, chat: WorkerEndpoint | None = None
) -> SupervisedWorker:
    """The worker for `hosted`, not started yet. Its socket and its key's file lie in the `private` folder.

    `chat` is the chat model beside it, which a judge among its rewards may ask.
    """
    socket = private / f"{hosted.name}.sock"
    key = secrets.token_urlsafe(32)
    limits = hosted.plan.workload
    endpoint = WorkerEndpoint(
        hosted.name, hosted.names, UnixAddress(socket), key, num_engines(hosted.plan) * limits.max_num_seqs,
        limits.max_model_len,
        api=_api_of(hosted), engine=hosted.plan.engine, plan=hosted.plan.to_json(),
        tells_report=hosted.role == "reward", tokenizer=hosted.tokenizer or hosted.folder,
        vocab_size=_vocab_size(hosted.folder), role=hosted.role,
    )  # fmt: skip
    record.plan(hosted.name, hosted.plan, hosted.names)
    if hosted.engine_args or hosted.verify_quant:
        record.teaches_nothing(hosted.name)
    launch = _launch(hosted, socket, key, private, chat)
    seen = _seen_by(hosted.cards, hosted.plan.on_cpu)
    launch.environment = {**launch.environment, **seen, **_threads(hosted.num_cores)}
    worker = SupervisedWorker(endpoint, launch, record.log_file(hosted.name), _teller(record, screen))
    worker.devices = _devices(hosted)
    if hosted.role == "chat" and hosted.load_format != "dummy" and not hosted.index:  # all load the same weights
        worker.vocab_size = endpoint.vocab_size
    endpoint.memory = worker.memory
    if hosted.speed is not None and num_engines(hosted.plan) == 1:  # requests of several are not told apart
        endpoint.latency = LatencyWatch(hosted.speed, record.kept, endpoint)
    return worker


def _vocab_size(folder: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        config = json.loads((folder / "config.json").read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        return size if isinstance(size, int) else None
    return None


def _api_of(hosted: Hosted) -> Api:
    """A reward model has our protocols in front of it, whatever computes."""
    return Api.OWN if hosted.role == "reward" else engine_launch(hosted.plan.engine).api


def _launch(hosted: Hosted, socket: Path, key: str, private: Path, chat: WorkerEndpoint | None) -> Launch:
    folder, names, plan = hosted.folder.resolve(), hosted.names, hosted.plan
    spec = WorkerSpec(folder, names, plan, socket, key, hosted.load_format, hosted.verify_quant)
    file = private / f"{hosted.name}.json"
    if hosted.role == "reward":
        served = None if chat is None else _judge(chat).to_json()
        return OwnLaunch("qserve.reward", spec, file, reward=hosted.reward.to_json(), served=served)
    return engine_launch(plan.engine).serving(spec, file, hosted.engine_args)


def _judge(chat: WorkerEndpoint) -> ServedChat:
    assert isinstance(chat.address, UnixAddress), "workers of one service listen at sockets"
    return ServedChat(str(chat.address.path), chat.key, chat.models[0])


def _seen_by(cards: tuple[Device, ...] | None, on_cpu: bool) -> dict[str, str]:
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


def _devices(hosted: Hosted) -> frozenset[str]:
    """What it computes on, as far as that is known: cards by their uuid, the CPU, or any card."""
    if hosted.plan.on_cpu:
        return frozenset({CPU})
    cards = hosted.cards or ()
    return frozenset(card.uuid for card in cards) if cards and all(card.uuid for card in cards) else frozenset({ANY})


def _teller(record: RunRecord, screen: Screen) -> WorkerEvents:
    """What happens to a worker goes to the record, and what a user waits for to the screen."""

    def tell(worker: str, event: str, details: dict[str, Any]) -> None:
        if event == "retry":
            record.plan(worker, details["plan"])
        record.event(worker, event, **{name: value for name, value in details.items() if name != "plan"})
        if event == "phase":
            screen.phase(f"{worker}: {details['name']}")
        elif event == "retry":
            screen.note(f"{worker}: {details['refused']}\n{worker}: trying once more with {details['reason']}")

    return tell
