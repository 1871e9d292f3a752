"""A training run in the run store: a run of its own, with what was planned and measured so far, and at its end."""

from __future__ import annotations

import itertools
import platform
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qserve.core.hardware import Hardware
from qserve.planner.training.operations import Operations
from qserve.runs import RunStore, StoreUnusable
from qserve.runs.retention import Retention
from qserve.runs.verdict import held_out_facts
from qserve.runs.writer import NewRun, RunWriter
from qserve.training.data.prepare import prepared
from qserve.training.job import TrainingRun
from qserve.training.outcome import Outcome, so_far
from qserve.training.quality import quality_in
from qserve.version import __version__

__all__ = ["TrainingRecord", "document_of"]

_MOST_POINTS = 400
# How often a run that goes on is kept: by how long it has gone on, and for at most a hundredth of the time.
_LEAST_S, _MOST_S, _OF_ITS_AGE, _TIMES_ITS_COST = 2.0, 15.0, 0.01, 100
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "datasets", "deepspeed", "bitsandbytes")


_KEPT = (
    "unix_s",
    "step",
    "loss",
    "learning_rate",
    "grad_norm",
    "accuracy",
    "margin",
    "step_s",
    "num_tokens",
    "reward",
    "reward_std",
    "kl",
    "mae",
)
# TRL's trainers call the same by several names.
_NAMES = {"rewards/accuracies": "accuracy", "rewards/margins": "margin", "mean_token_accuracy": "accuracy"}


class TrainingRecord:
    """Begun before the process is started; `progress` keeps what is known so far, `close` the result.

    A store that can't be written costs the record.
    """

    def __init__(self, run: TrainingRun, state_folder: Path, command: Sequence[str], hardware: Hardware) -> None:
        self._run, self._state = run, state_folder
        # A process may train several in a second: the random part keeps their names apart.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-train-{secrets.token_hex(2)}"
        about = {**asdict(hardware), "cpu": hardware.cpu.model_name}
        about["packages"] = None
        new = NewRun(name, tuple(command), _versions(), about, run.folder, "train")
        state_folder.mkdir(parents=True, exist_ok=True)
        self._writer = RunWriter(state_folder, new, Retention())
        self._began_s, self._next_s = time.monotonic(), 0.0
        self.id = name
        self.progress(())

    def progress(self, events: Sequence[Mapping[str, Any]]) -> None:
        """For whoever follows the run; `events` are all since this start. Now and then: most calls return at once."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._writer.training(_name(self._run), document_of(self._run, so_far(events), None))
        every_s = min(_MOST_S, max(_LEAST_S, _OF_ITS_AGE * (now_s - self._began_s)))
        self._next_s = now_s + max(every_s, _TIMES_ITS_COST * (time.monotonic() - now_s))

    def close(self, outcome: Outcome, check: Mapping[str, Any] | None, exit_status: int) -> str | None:
        """The run's id where its result was kept; else None."""
        self._writer.close(exit_status)
        try:
            store = RunStore.open(self._state)
            store.keep_training(document_of(self._run, outcome, check), name=_name(self._run), run=self.id)
        except StoreUnusable:
            return None
        return self.id


def _name(run: TrainingRun) -> str:
    return f"{run.method} {Path(run.plan['model']['id']).name}"


def document_of(run: TrainingRun, outcome: Outcome, check: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that a report tells of it: plan, measured terms, curves, the end, the check of the saved model."""
    logged = [one for one in outcome.events if one["event"] == "logged" and one.get("loss") is not None]
    trained = _Trained.of(logged)
    flops_per_s = _flops_per_s(run, trained)
    return {
        "method": run.method,
        "model": run.model,
        "output": str(run.output),
        "state": outcome.state,
        "reason": outcome.reason,
        "job": run.to_json(),
        **_steps(outcome),
        "planned": _planned(run),
        "measured": dict(outcome.measured),
        "memory_source": next((one["source"] for one in outcome.events if one["event"] == "memory"), ""),
        "curve": [_point(one) for one in _thinned(logged)],
        "evaluations": [_evaluation(one) for one in outcome.evaluations][-_MOST_POINTS:],
        "tokens_per_s": trained.tokens / trained.seconds if trained else None,
        "step_s": _median([one["step_s"] for one in logged[1:] if one.get("step_s")]),
        "flops_per_s": flops_per_s,
        "mfu": _mfu(run, outcome, flops_per_s),
        "rollouts": [
            {"step": one["step"], "samples": one["samples"]} for one in outcome.events if one["event"] == "rollouts"
        ],
        "data": _data(run),
        "held_out": held_out_facts(_counts(outcome.last("held out"))),
        "quality": quality_in(run.folder / "held_out.jsonl", run.data.labels) if run.trainer == "reward" else None,
        "check": dict(check) if check else None,
        "configuration": _text(run.folder / "train.yaml"),
        "accelerate": _text(run.folder / "accelerate.yaml"),
    }


def _data(run: TrainingRun) -> dict[str, Any] | None:
    """What became of the rows: how many are trained on, what was left out, and what nothing read."""
    made = prepared(run.folder)
    return None if made is None else {**asdict(made), "told": made.told, "notes": made.notes}


def _counts(event: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (event or {}).items() if name not in ("event", "unix_s")}


def _steps(outcome: Outcome) -> dict[str, Any]:
    """The last optimizer step, and of how many; None before the first."""
    logged, begun = outcome.last("logged"), outcome.last("train")
    return {"step": logged and logged["step"], "num_steps": begun and begun["to_step"]}


def _planned(run: TrainingRun) -> dict[str, Any]:
    """Bytes of the first card by term, and by phase without what other processes held; its name, size and the phase
    whose `peak_terms` they are.
    """
    card = run.plan["devices"][0]
    terms = {term["name"]: term["num_bytes"] for term in (*card["terms"], *card["other_terms"])}
    others = terms.pop("others", 0)
    return {
        "terms": terms,
        "phases": {name: size - others for name, size in card["phases"].items()},
        "peak_terms": {term["name"]: term["num_bytes"] for term in card["terms"]},
        **{name: card[name] for name in ("name", "phase", "total_bytes")},
    }


def _point(event: Mapping[str, Any]) -> dict[str, Any]:
    named = {_NAMES.get(name, name): value for name, value in event.items()}
    return {name: named[name] for name in _KEPT if isinstance(named.get(name), int | float)}


def _evaluation(event: Mapping[str, Any]) -> dict[str, Any]:
    found = {name.removeprefix("eval_"): value for name, value in event.items() if isinstance(value, int | float)}
    return {_NAMES.get(name, name): value for name, value in found.items()}


def _thinned(points: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Evenly, first and last kept."""
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * step)] for index in range(_MOST_POINTS)]


@dataclass(frozen=True)
class _Trained:
    """What went through the model in all steps but the first, which compiles and allocates."""

    tokens: float
    steps: int
    seconds: float

    @classmethod
    def of(cls, logged: Sequence[Mapping[str, Any]]) -> _Trained | None:
        """None where too few steps were logged."""
        known = [one for one in logged if one.get("num_tokens") and one.get("step_s")]
        if len(known) < 2:
            return None
        seconds = sum(one["step_s"] * (one["step"] - before["step"]) for before, one in itertools.pairwise(known))
        first, last = known[0], known[-1]
        made = cls(last["num_tokens"] - first["num_tokens"], last["step"] - first["step"], seconds)
        return made if made.seconds > 0 and made.steps > 0 else None


def _flops_per_s(run: TrainingRun, trained: _Trained | None) -> float | None:
    """Of the model alone, as the plan counts operations; None where it does not, since rollouts are generated."""
    operations = run.plan.get("operations")
    if trained is None or operations is None:
        return None
    sequences = run.request.sequences * run.request.gradient_accumulation_steps * run.num_processes
    length = trained.tokens / (trained.steps * sequences)
    return Operations(**operations).of(trained.tokens, length) / trained.seconds


def _mfu(run: TrainingRun, outcome: Outcome, flops_per_s: float | None) -> float | None:
    """Against the products that every process measured before the run, all at the same time."""
    peak = (outcome.last("imported") or {}).get("peak_flops_per_s")
    return flops_per_s / (peak * run.num_processes) if flops_per_s and peak else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _versions() -> dict[str, str]:
    found = {"qserve": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
