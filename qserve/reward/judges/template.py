"""Judge templates: the prompt, and how a verdict becomes a number: a YAML file in configs/judges/ or of the user's own.

version: 1
kind: pointwise            # or pairwise
prompt: |                  # Jinja; slots: prompt, response, reference, rubric; pairwise: response_a, response_b
  …{{ prompt }}…{{ response }}… End with "Score: N", N from 1 to 10.
verdict: 'Score:\\s*(\\d+)'  # the last match in the answer's last 2,000 characters counts; its group is the verdict
scale: [1, 10]             # pointwise, a verdict that is a number: becomes 0 to 1
choices: {A: 1, B: 0, C: 0.5}   # a verdict that is a word: what the answer gets; pairwise: what A's answer gets
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml
from jinja2 import StrictUndefined, TemplateError, meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from qserve.core.facts import find_file
from qserve.errors import MissingExtra, UsageError
from qserve.reward.judges.verdict import last_match, tail_of, verdict_pattern
from qserve.yaml_errors import yaml_problem

__all__ = ["BUNDLED", "JudgeTemplate", "read_template"]

BUNDLED = ("pointwise", "pairwise", "rubric")
_FIELDS = {"version", "kind", "prompt", "verdict", "scale", "choices"}
_SLOTS = {"pointwise": ("response",), "pairwise": ("response_a", "response_b")}
_KNOWN_SLOTS = {"prompt", "response", "response_a", "response_b", "reference", "rubric"}


@dataclass(frozen=True)
class JudgeTemplate:
    """See the module. `verdict_of` reads an answer; None where it says no verdict."""

    name: str
    version: str
    kind: Literal["pointwise", "pairwise"]
    text: str
    verdict: str
    low: float = 0.0
    high: float = 1.0
    choices: tuple[tuple[str, float], ...] = ()

    @property
    def needs_rubric(self) -> bool:
        return "rubric" in _slots(self.text)

    @property
    def needs_reference(self) -> bool:
        return "reference" in _slots(self.text)

    def render(self, **slots: str) -> str:
        """The question."""
        return _environment().from_string(self.text).render(**slots)

    def verdict_of(self, answer: str) -> float | None:
        """From 0 to 1, by the last match in the end of what stands after a thought. Blocks its thread alone."""
        found = last_match(self.verdict, tail_of(answer))
        if found is None:
            return None
        if self.choices:
            return dict(self.choices).get(found)
        try:
            value = float(found)
        except ValueError:
            return None
        return (value - self.low) / (self.high - self.low) if self.low <= value <= self.high else None


def read_template(name: str, where: str, folder: Path) -> JudgeTemplate:
    """A bundled template by its name, or a file. Raises UsageError, which begins with `where`, for what can't judge."""
    path = find_file(f"judges/{name}.yaml") if name in BUNDLED else folder / Path(name).expanduser()
    try:
        document = yaml.safe_load(path.read_text())
    except OSError:
        raise UsageError(
            f"{where}: there is no judge template {name!r}; it takes {', '.join(BUNDLED)}, or a YAML file"
        ) from None
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{where}: {path} can't be read as YAML: {yaml_problem(error)}") from None
    return _template(document, Path(name).name, f"{where}: the judge template {path.name}")


def _template(document: Any, name: str, where: str) -> JudgeTemplate:
    found = list(map(str, document)) if isinstance(document, Mapping) else []
    missing = [name for name in ("version", "kind", "prompt", "verdict") if name not in found]
    if missing:
        raise UsageError(f"{where} has no {' and no '.join(missing)}; found: {', '.join(found) or 'no fields'}")
    unknown = sorted(set(document) - _FIELDS)
    if unknown:
        raise UsageError(f"{where} has no field {unknown[0]!r}; it takes {', '.join(sorted(_FIELDS))}")
    kind, text = document["kind"], str(document["prompt"])
    if kind not in _SLOTS:
        raise UsageError(f"{where} has the kind {kind!r}; it takes pointwise or pairwise")
    _check_slots(text, kind, where)
    try:
        verdict_pattern(str(document["verdict"]))
    except UsageError as error:
        raise error if isinstance(error, MissingExtra) else UsageError(f"{where}: 'verdict' {error}") from None
    made = JudgeTemplate(name, str(document["version"]), kind, text, str(document["verdict"]))
    return _with_numbers(made, document, where)


def _with_numbers(made: JudgeTemplate, document: Mapping[str, Any], where: str) -> JudgeTemplate:
    if made.kind == "pointwise" and "choices" not in document:
        scale = document.get("scale")
        if not isinstance(scale, list) or len(scale) != 2 or not all(map(_is_number, scale)) or scale[0] >= scale[1]:
            raise UsageError(f"{where}: 'scale' is {scale!r}; a pointwise judge needs [lowest, highest], or 'choices'")
        return replace(made, low=float(scale[0]), high=float(scale[1]))
    choices = document.get("choices")
    shares = choices.values() if isinstance(choices, Mapping) else ()
    if not shares or not all(_is_number(value) and 0 <= value <= 1 for value in shares):
        example = "{A: 1, B: 0, C: 0.5}" if made.kind == "pairwise" else '{"Yes": 1, "No": 0}'
        raise UsageError(f"{where}: 'choices' is {choices!r}; a {made.kind} judge needs {example}, say")
    assert isinstance(choices, Mapping)
    words = [word for word in choices if not isinstance(word, str)]
    if words:  # YAML reads a bare yes as true
        raise UsageError(
            f"{where}: YAML reads an entry of 'choices' as {words[0]!r}, not as a word; put it in quotation marks"
        )
    return replace(made, choices=tuple((word, float(value)) for word, value in choices.items()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_slots(text: str, kind: str, where: str) -> None:
    try:
        slots = _slots(text)
    except TemplateError as error:
        raise UsageError(f"{where}: 'prompt' is not a Jinja template: {error}") from None
    missing = [slot for slot in _SLOTS[kind] if slot not in slots]
    if missing:
        raise UsageError(f"{where} has no slot {{{{ {missing[0]} }}}}, so the judge would not see what it judges")
    unknown = sorted(slots - _KNOWN_SLOTS)
    if unknown:
        raise UsageError(f"{where} has a slot {unknown[0]!r}; the slots are {', '.join(sorted(_KNOWN_SLOTS))}")


def _slots(text: str) -> set[str]:
    environment = _environment()
    return meta.find_undeclared_variables(environment.parse(text))


def _environment() -> ImmutableSandboxedEnvironment:
    return ImmutableSandboxedEnvironment(undefined=StrictUndefined)
