"""The YAML behind `--reward rewards.yaml`.

    parts:
      - {name: quality, model: ./my-reward-model, weight: 0.5, mean: 0.0, std: 1.0}
      - {name: correct, rule: math, weight: 1.0}
      - {name: format, rule: regex, pattern: '<think>.*</think>', weight: 0.2}
      - {name: helpful, judge: pointwise, url: 'http://127.0.0.1:8000/v1', model: demo, weight: 1.0, votes: 1}

A path in it is meant from the file's own folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from qserve.errors import UsageError
from qserve.reward.judges.template import JudgeTemplate, read_template
from qserve.reward.rules import Rule, make_rule
from qserve.yaml_errors import yaml_problem

__all__ = ["SERVED", "WITHOUT_MODEL", "JudgePart", "ModelPart", "Recipe", "RulePart", "is_recipe", "read_recipe"]

_KINDS = ("model", "rule", "judge")
_MODEL_OPTIONS = ("mean", "std")
_JUDGE_OPTIONS = (
    "url",
    "model",
    "api_key_file",
    "votes",
    "max_unparsable",
    "if_unparsable",
    "temperature",
    "max_tokens",
    "rubric",
    "at_once",
)
WITHOUT_MODEL = "RulesAndJudges"
"""The architecture that a plan names for a recipe without a model."""
SERVED = "served"
"""In place of a judge's URL: the chat model that the same `qserve up` serves."""


@dataclass(frozen=True)
class ModelPart:
    """A trained reward model. `path` is what `--reward` would take; its reward counts as (reward - mean) / std."""

    name: str
    weight: float
    path: str
    mean: float = 0.0
    std: float = 1.0


@dataclass(frozen=True)
class RulePart:
    name: str
    weight: float
    rule: Rule


@dataclass(frozen=True)
class JudgePart:
    """A chat model that judges, behind an OpenAI-compatible URL.

    Attributes:
        url: the API's base, with /v1; or `served`.
        model: the name that is asked for; with `served` it may be left out.
        api_key_file: a file that holds the key; None: none is sent.
        votes: how often each question is asked; the verdicts are averaged.
        max_unparsable: share of a request's verdicts that may say no number before the request fails.
        if_unparsable: what an answer gets of which no verdict can be read, 0 to 1; None: the request fails.
        temperature: 0 with one vote, else 1, unless it is given.
        max_tokens: of a verdict, with what a judge says or thinks before it; None: up to the end of its context.
        rubric: text for the template's slot of that name.
        at_once: questions on their way at the same time.
    """

    name: str
    weight: float
    template: JudgeTemplate
    url: str
    model: str
    api_key_file: Path | None = None
    votes: int = 1
    max_unparsable: float = 0.1
    if_unparsable: float | None = None
    temperature: float = 0.0
    max_tokens: int | None = None
    rubric: str = ""
    at_once: int = 16


Part = ModelPart | RulePart | JudgePart


@dataclass(frozen=True)
class Recipe:
    """`parts` in the file's order, at most one of them a model."""

    file: Path
    parts: tuple[Part, ...]

    @property
    def model(self) -> ModelPart | None:
        return next((part for part in self.parts if isinstance(part, ModelPart)), None)

    @property
    def summary(self) -> str:
        """The parts with their weights, for people."""
        return " + ".join(f"{part.weight:g} × {part.name}" for part in self.parts)

    @property
    def asks_served(self) -> bool:
        """Whether a judge is the chat model of the same service."""
        return any(isinstance(part, JudgePart) and part.url == SERVED for part in self.parts)

    @property
    def weights(self) -> dict[str, float]:
        return {part.name: part.weight for part in self.parts}


def is_recipe(reward: str) -> bool:
    """Whether what stands behind --reward names such a file."""
    return reward.endswith((".yaml", ".yml")) and Path(reward).expanduser().is_file()


def read_recipe(file: Path) -> Recipe:
    """Raises UsageError, or MissingExtra for a rule whose package is not there."""
    try:
        document = yaml.safe_load(file.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{file} can't be read as YAML: {yaml_problem(error)}") from None
    if not isinstance(document, dict) or list(document) != ["parts"] or not isinstance(document["parts"], list):
        found = ", ".join(map(str, document)) if isinstance(document, dict) else type(document).__name__
        raise UsageError(f"{file} must have the list `parts:` and no other field; found: {found}")
    parts = tuple(_part(entry, f"{file}, part {number}", file) for number, entry in enumerate(document["parts"], 1))
    names = [part.name for part in parts]
    if not parts or len(set(names)) < len(names):
        raise UsageError(f"{file}: every part needs its own name; found: {', '.join(names) or 'no parts'}")
    if sum(isinstance(part, ModelPart) for part in parts) > 1:
        raise UsageError(f"{file} names more than one model; a worker loads one (serve a second with another server)")
    return Recipe(file, parts)


def _part(entry: Any, where: str, file: Path) -> Part:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where} is not an object; write for example {{name: format, rule: regex, pattern: '…'}}")
    kinds = [kind for kind in _KINDS if kind in entry]
    if "judge" in kinds:  # `model` is the judge's own then
        kinds = [kind for kind in kinds if kind != "model"]
    if len(kinds) != 1:
        raise UsageError(f"{where} must have one of {', '.join(_KINDS)}; it has {' and '.join(kinds) or 'none'}")
    kind = kinds[0]
    name = entry.get("name", kind if kind == "model" else entry[kind])
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where}: 'name' is a word; found {name!r}")
    where = f"{where} ({name})"
    weight = _number(entry.get("weight", 1.0), "weight", where)
    options = {key: value for key, value in entry.items() if key not in ("name", "weight", kind)}
    if kind == "rule":
        return RulePart(name, weight, make_rule(str(entry["rule"]), options, where))
    if kind == "judge":
        return _judge(name, weight, str(entry["judge"]), options, where, file)
    _known(options, _MODEL_OPTIONS, where)
    mean, std = _number(options.get("mean", 0.0), "mean", where), _number(options.get("std", 1.0), "std", where)
    if std <= 0:
        raise UsageError(f"{where}: 'std' is {std}; it must be above 0")
    return ModelPart(name, weight, _path(str(entry["model"]), file), mean, std)


def _judge(name: str, weight: float, template: str, options: dict[str, Any], where: str, file: Path) -> JudgePart:
    _known(options, _JUDGE_OPTIONS, where)
    url, model = options.get("url"), options.get("model", "" if options.get("url") == SERVED else None)
    if not isinstance(url, str) or not (url == SERVED or url.startswith(("http://", "https://"))):
        raise UsageError(
            f"{where}: a judge's 'url' is an address, for example http://127.0.0.1:8000/v1, or {SERVED!r}, the chat "
            f"model of the same service (qserve up --model …); found {url!r}"
        )
    if not isinstance(model, str) or not (model or url == SERVED):
        raise UsageError(f"{where}: a judge needs 'model', the name that is asked for at {url}")
    if url == SERVED and "api_key_file" in options:
        raise UsageError(f"{where}: 'api_key_file' is for other servers; url: {SERVED} needs no key")
    votes = int(_number(options.get("votes", 1), "votes", where, 1, 64))
    found = read_template(template, where, file.parent)
    rubric = str(options.get("rubric", ""))
    if found.needs_rubric and not rubric:
        raise UsageError(f"{where}: the template {found.name} asks for a rubric; write it as 'rubric'")
    key_file = Path(_path(str(options["api_key_file"]), file)) if "api_key_file" in options else None
    if key_file is not None and not key_file.is_file():
        raise UsageError(f"{where}: there is no file {key_file} ('api_key_file')")
    return JudgePart(
        name,
        weight,
        found,
        url.rstrip("/"),
        model,
        key_file,
        votes,
        _number(options.get("max_unparsable", 0.1), "max_unparsable", where, 0, 1),
        _number(options["if_unparsable"], "if_unparsable", where, 0, 1) if "if_unparsable" in options else None,
        _number(options.get("temperature", 0.0 if votes == 1 else 1.0), "temperature", where, 0, 2),
        int(_number(options["max_tokens"], "max_tokens", where, 1, 1 << 20)) if "max_tokens" in options else None,
        rubric,
        int(_number(options.get("at_once", 16), "at_once", where, 1, 1024)),
    )


def _known(options: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    unknown = next((name for name in options if name not in allowed), None)
    if unknown is not None:
        raise UsageError(f"{where} has no option {unknown!r}; it takes name, weight, {', '.join(allowed)}")


def _number(value: Any, name: str, where: str, low: float = -1e6, high: float = 1e6) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{where}: {name!r} is {value!r}; it takes a number")
    if not low <= value <= high:
        raise UsageError(f"{where}: {name!r} is {value!r}; it takes a number from {low:g} to {high:g}")
    return float(value)


def _path(value: str, file: Path) -> str:
    """Relative to the file where it is there; else as --reward takes it (a hub id, demo)."""
    beside = file.parent / Path(value).expanduser()
    return str(beside) if beside.exists() else value
