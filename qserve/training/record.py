"""A training run in the run store: a run of its own while it goes, and at its end what was planned and measured."""

from __future__ import annotations

import itertools
import platform
import secrets
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qserve.core.hardware import Hardware
from qserve.runs import RunStore, StoreUnusable
from qserve.runs.retention import Retention
from qserve.runs.writer import NewRun, RunWriter
from qserve.training.job import TrainingRun
from qserve.training.outcome import Outcome
from qserve.training.quality import quality_in
from qserve.version import __version__

__all__ = ["TrainingRecord", "document_of"]

_MOST_POINTS = 400
_PACKAGES = ("torch", "transformers", "trl", "accelerate", "peft", "datasets", "deepspeed", "bitsandbytes")


class TrainingRecord:
    """Begun before the process is started; `close` keeps the result. A store that can't be written costs the record."""

    def __init__(self, run: TrainingRun, state_folder: Path, command: Sequence[str], hardware: Hardware) -> None:
        self._run, self._state = run, state_folder
        # A process may train several in a second: the random part keeps their names apart.
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-train-{secrets.token_hex(2)}"
        about = {**asdict(hardware), "cpu": hardware.cpu.model_name}
        about["packages"] = None
        new = NewRun(name, tuple(command), _versions(), about, run.folder, "train")
        state_folder.mkdir(parents=True, exist_ok=True)
        self._writer = RunWriter(state_folder, new, Retention())
        self.id = name

    def close(self, outcome: Outcome, check: Mapping[str, Any] | None, exit_status: int) -> str | None:
        """The run's id where its result was kept; else None."""
        self._writer.close(exit_status)
        try:
            store = RunStore.open(self._state)
            store.add_training(document_of(self._run, outcome, check), name=_name(self._run), run=self.id)
        except StoreUnusable:
            return None
        return self.id


def _name(run: TrainingRun) -> str:
    return f"{run.method} {Path(run.model).name}"


def document_of(run: TrainingRun, outcome: Outcome, check: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that a report tells of it: plan, measured terms, curves, the end, the check of the saved model."""
    logged = [one for one in outcome.events if one["event"] == "logged" and one.get("loss") is not None]
    return {
        "method": run.method,
        "model": run.model,
        "output": str(run.output),
        "state": outcome.state,
        "reason": outcome.reason,
        "job": run.to_json(),
        "planned": _planned(run),
        "measured": dict(outcome.measured),
        "memory_source": next((one["source"] for one in outcome.events if one["event"] == "memory"), ""),
        "curve": _thinned([_point(one) for one in logged]),
        "evaluations": [_evaluation(one) for one in outcome.evaluations][-_MOST_POINTS:],
        "tokens_per_s": _tokens_per_s(logged),
        "step_s": _median([one["step_s"] for one in logged[1:] if one.get("step_s")]),
        "flops_per_s": _flops_per_s(run, logged),
        "held_out": dict(outcome.last("held out") or {}),
        "quality": quality_in(run.folder / "held_out.jsonl") if run.trainer == "reward" else None,
        "check": dict(check) if check else None,
        "configuration": _text(run.folder / "train.yaml"),
    }


def _planned(run: TrainingRun) -> dict[str, Any]:
    """Bytes of the first card by term, and by phase without what other processes held."""
    card = run.plan["devices"][0]
    terms = {term["name"]: term["num_bytes"] for term in (*card["terms"], *card["other_terms"])}
    others = terms.pop("others", 0)
    return {"terms": terms, "phases": {name: size - others for name, size in card["phases"].items()}}


def _point(event: Mapping[str, Any]) -> dict[str, Any]:
    kept = (
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
    )
    return {name: event[name] for name in kept if isinstance(event.get(name), int | float)}


def _evaluation(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix("eval_"): value for name, value in event.items() if isinstance(value, int | float)}


def _thinned(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evenly, first and last kept."""
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(index * step)] for index in range(_MOST_POINTS)]


def _tokens_per_s(logged: Sequence[Mapping[str, Any]]) -> float | None:
    """Over all steps but the first, which compiles and allocates."""
    known = [one for one in logged if one.get("num_tokens") and one.get("step_s")]
    if len(known) < 2:
        return None
    tokens = known[-1]["num_tokens"] - known[0]["num_tokens"]
    seconds = sum(one["step_s"] * (one["step"] - before["step"]) for before, one in itertools.pairwise(known))
    return float(tokens / seconds) if seconds > 0 else None


def _flops_per_s(run: TrainingRun, logged: Sequence[Mapping[str, Any]]) -> float | None:
    """Of the model alone, recomputation not counted (MFU's numerator): 2 a parameter and token forward, 2 for the
    gradient of what it passes on, 2 for that of what is trained. Embeddings that are looked up count as lm_head.
    """
    tokens_per_s, model = _tokens_per_s(logged), run.plan.get("model")
    if tokens_per_s is None or model is None:
        return None
    passed_on = 0 if run.request.freeze_base else model["parameters"]
    return float(2 * (model["parameters"] + passed_on + model["trainable"]) * tokens_per_s)


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
