"""The result of an evaluation as a file: lm-eval's own, with model, settings, versions and time."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.evaluation.answers.generations import OutcomeCounts
from qserve.evaluation.golds import Unscorable
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.server import ServedModel
from qserve.hub.chat_template import read_template
from qserve.version import __version__

__all__ = ["EvalResult", "Score", "template_hash"]

_FILE = "result.json"
_VERSIONS = ("lm-eval", "transformers", "torch", "datasets")


@dataclass(frozen=True)
class Score:
    """One figure of one task. `stderr` is None where lm-eval has none."""

    task: str
    metric: str
    value: float
    stderr: float | None
    num_items: int
    num_fewshot: int
    higher_is_better: bool

    def __str__(self) -> str:
        error = f" ± {self.stderr:.4f}" if self.stderr is not None else ""
        return f"{self.task} {self.metric} {self.value:.4f}{error} of {self.num_items:,} items"


@dataclass(frozen=True, repr=False)
class EvalResult:
    """What `qserve eval` leaves behind. It prints as a line a figure.

    Attributes:
        about: model, engine, quantization, hardware, versions, template hash, seed, what was asked, when, how long.
        lm_eval: lm-eval's result, whole, samples included.
    """

    about: Mapping[str, Any]
    lm_eval: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"<EvalResult {self.about.get('model')}, {', '.join(self.lm_eval.get('results', ())) or 'no tasks'}>"

    def __str__(self) -> str:
        return "\n".join([str(self.about.get("model")), *map(str, self.scores() if "results" in self.lm_eval else ())])

    @classmethod
    def of(
        cls,
        served: ServedModel,
        request: EvalRequest,
        lm_eval: Mapping[str, Any],
        seconds: float,
        num_kept: int = 0,
        notes: Sequence[str] = (),
    ) -> EvalResult:
        """The result of asking `request` of `served`, which took `seconds`; `num_kept` answers were there before."""
        about = {
            "model": served.model,
            **served.run,
            "max_model_len": served.max_model_len,
            "template_hash": template_hash(Path(served.tokenizer)) if served.tokenizer else None,
            "asked": asdict(request),
            "seed": request.seed,
            "notes": list(notes),
            "versions": {"qserve": __version__, "python": platform.python_version(), **_versions()},
            "machine": platform.machine(),
            "url": served.url,
            "run": served.run_id,
            "num_answers_kept": num_kept,
            "unix_s": round(time.time(), 3),
            "seconds": round(seconds, 3),
        }
        return cls(about, lm_eval)

    def document(self) -> dict[str, Any]:
        """All of it as plain JSON, for a store."""
        told: dict[str, Any] = json.loads(self._text())
        return told

    def scores(self) -> list[Score]:
        """Every figure of every task, in lm-eval's order."""
        return [score for task in self.lm_eval["results"] for score in self._of_task(task)]

    def outcomes(self) -> dict[str, OutcomeCounts]:
        """How the generated answers of each task ended; tasks that generate nothing are left out."""
        names = [item.name for item in fields(OutcomeCounts)]
        return {
            task: OutcomeCounts(**{name: figures[name] for name in names})
            for task, figures in self.lm_eval["results"].items()
            if all(name in figures for name in names)
        }

    def unscorable(self) -> dict[str, Unscorable]:
        """By task, the items that were left out: their gold is none of their choices, or the server refused them."""
        return {
            task: Unscorable(told["num_items"], {int(number): why for number, why in told["whys"].items()})
            for task, told in self.lm_eval.get("unscorable", {}).items()
        }

    def unusable(self, max_share: float) -> list[str]:
        """A sentence for each task of which more than `max_share` of the answers were cut off, empty or missing, or of
        the items can't be scored.
        """
        left_out = [one.sentence(task) for task, one in self.unscorable().items() if one.share > max_share]
        return left_out + [
            f"{task}: {100 * counts.unusable_share:.1f} % of {counts.num_answers:,} answers can't be scored "
            f"({counts.truncated:,} cut off, {counts.empty:,} empty, {counts.null:,} null)"
            for task, counts in self.outcomes().items()
            if counts.unusable_share > max_share
        ]

    def samples(self, task: str) -> dict[int, dict[str, Any]]:
        """The items of a task by their number, with the model's answers."""
        return {int(one["doc_id"]): one for one in self.lm_eval["samples"].get(task, ())}

    def save(self, folder: Path) -> Path:
        """Write it to `folder`/result.json, whole or not at all; the file."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{_FILE}.part"
        part.write_text(self._text())
        return part.replace(folder / _FILE)

    def _text(self) -> str:
        return json.dumps({"about": self.about, "lm_eval": self.lm_eval}, ensure_ascii=False, default=str)

    @classmethod
    def load(cls, path: Path) -> EvalResult:
        """What `save` wrote, from its file or folder. Raises UsageError for anything else."""
        file = path / _FILE if path.is_dir() else path
        try:
            document = json.loads(file.read_text())
            return cls(document["about"], document["lm_eval"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{file} is not a result of `qserve eval` ({type(error).__name__}: {error})") from None

    def _of_task(self, task: str) -> list[Score]:
        figures: Mapping[str, Any] = self.lm_eval["results"][task]
        better = self.lm_eval.get("higher_is_better", {}).get(task, {})
        items = self.lm_eval.get("n-samples", {}).get(task, {}).get("effective", 0)
        shots = self.lm_eval.get("n-shot", {}).get(task, 0)
        scores = []
        for key, value in figures.items():
            metric, comma, kind = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            stderr = figures.get(f"{metric}_stderr,{kind}")
            told = float(stderr) if isinstance(stderr, int | float) else None
            scores.append(Score(task, metric, float(value), told, items, shots, bool(better.get(metric, True))))
        return scores


def template_hash(folder: Path) -> str | None:
    """Sixteen hex digits of the chat template; None where there is none, or no folder to look into."""
    text = read_template(folder)
    return hashlib.sha256(text.encode()).hexdigest()[:16] if text else None


def _versions() -> dict[str, str]:
    found = {}
    for name in _VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
