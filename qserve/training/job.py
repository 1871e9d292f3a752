"""`TrainingRun`: one run as it is decided, from the flags of `qserve train` to the file that its process reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from qserve.errors import UsageError
from qserve.planner.training import TrainingRequest, VllmBeside

__all__ = ["DataSource", "RewardSource", "SaveAs", "Schedule", "TrainingRun"]

SaveAs = Literal["sequence-classification", "reward-head"]
"""How a reward model is saved: transformers' own layout, or the write-up's linear `reward_head` over `base_model`."""


@dataclass(frozen=True)
class DataSource:
    """Where rows come from: files or hub ids. Without `eval_path` a share of the prompts is held out.

    `labels` name the scores that a row of a reward model's data has, in order; empty: rows are pairs.
    """

    path: str
    eval_path: str | None = None
    eval_share: float = 0.05
    max_broken_share: float = 0.01
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schedule:
    """How long, how fast, how often. Steps are optimizer steps; None: by the length of the run.

    `patience` counts evaluations without a better one before the run ends early (None: never).
    """

    max_steps: int | None = None
    epochs: float | None = None
    learning_rate: float | None = None
    warmup_steps: int = 0
    eval_steps: int | None = None
    save_steps: int | None = None
    save_total_limit: int = 2
    patience: int | None = None


@dataclass(frozen=True)
class RewardSource:
    """What rewards rollouts: `target` is a server's URL, a checkpoint, or a recipe (YAML of rules and models)."""

    target: str
    weight: float = 1.0

    @property
    def is_served(self) -> bool:
        return self.target.startswith(("http://", "https://"))


@dataclass(frozen=True)
class TrainingRun:
    """One run. `request` is what was planned and fits; `model` a checkpoint's folder; `device` where it runs.

    `center_rewards` is TRL's center_rewards_coefficient. `label_weights` are what each label counts in the one reward
    that the host gives (empty: their mean). `num_generations` are rollouts a prompt (grpo).
    """

    request: TrainingRequest
    model: str
    data: DataSource
    output: Path
    schedule: Schedule = Schedule()
    seed: int = 0
    device: Literal["cpu", "cuda"] = "cpu"
    num_processes: int = 1
    center_rewards: float | None = None
    label_weights: Mapping[str, float] = field(default_factory=dict)
    label_smoothing: float = 0.0
    save_as: SaveAs = "sequence-classification"
    rewards: tuple[RewardSource, ...] = ()
    num_generations: int = 8
    num_workers: int = 0
    packing: bool = False
    plan: Mapping[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        return self.request.method

    @property
    def trainer(self) -> Literal["sft", "reward", "dpo", "grpo"]:
        """TRL's trainer: lora and qlora are SFT with adapters."""
        names: dict[str, Literal["sft", "reward", "dpo", "grpo"]] = {"reward": "reward", "dpo": "dpo", "grpo": "grpo"}
        return names.get(self.method, "sft")

    @property
    def shards_on_cpu(self) -> bool:
        """ZeRO or FSDP over processes on a CPU, which accelerate and DeepSpeed take for granted there are cards for."""
        return self.device == "cpu" and self.request.sharding_stage > 0

    @property
    def folder(self) -> Path:
        """Where the run's own files lie: configuration, events, log, broken rows."""
        return self.output / "run"

    @property
    def data_folder(self) -> Path:
        """`train.jsonl` and `test.jsonl` in TRL's format."""
        return self.output / "data"

    @property
    def events_file(self) -> Path:
        return self.folder / "events.jsonl"

    @property
    def stop_file(self) -> Path:
        """While it is there the process saves at its next step and ends."""
        return self.folder / "stop"

    def write(self) -> Path:
        """The file that the process reads."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "job.json"
        file.write_text(json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")
        return file

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        plain = {"output": str(self.output), "plan": dict(self.plan), "label_weights": dict(self.label_weights)}
        return {**asdict(self), **plain}

    @classmethod
    def read(cls, file: Path) -> TrainingRun:
        """What `write` wrote. Raises UsageError where it is none of ours."""
        try:
            return cls.from_json(json.loads(file.read_text()))
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{file} is not a job of qserve train ({error}); name its --output folder") from None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainingRun:
        """What `to_json` wrote."""
        request = dict(data["request"])
        vllm = request.pop("vllm")
        return cls(
            **{
                **data,
                "request": TrainingRequest(**request, vllm=VllmBeside(**vllm) if vllm else None),
                "data": DataSource(**{**data["data"], "labels": tuple(data["data"].get("labels", ()))}),
                "schedule": Schedule(**data["schedule"]),
                "output": Path(data["output"]),
                "rewards": tuple(RewardSource(**one) for one in data["rewards"]),
            }
        )

    def changes_since(self, earlier: TrainingRun) -> list[str]:
        """Fields in which a run that goes on differs from the one that it goes on from; its length may."""
        ours, theirs = self.to_json(), earlier.to_json()
        may_differ = ("plan", "schedule", "output", "num_workers")
        for one in (ours, theirs):  # what the next plan learned or computed is none of the run's flags
            share = {"gpu_memory_utilization": None, "sleep": False}
            vllm = one["request"]["vllm"] and {**one["request"]["vllm"], **share}
            one["request"] = {**one["request"], "runtime_bytes": None, "vllm": vllm}
        changed = [name for name in ours if name not in may_differ and ours[name] != theirs[name]]
        lasting = ("learning_rate", "warmup_steps")
        return changed + [name for name in lasting if ours["schedule"][name] != theirs["schedule"][name]]
