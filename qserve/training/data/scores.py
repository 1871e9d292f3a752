"""One row of scores: an answer with a number for each label, for a reward model of several labels.

    HelpSteer   {"prompt", "response", "helpfulness", "correctness", "coherence", "complexity", "verbosity"}
    by name     {"prompt", "response", "scores": {"helpful": 3, "verbose": 1}}
    in order    {"messages", "scores": [3, 1]}
    one score   {"prompt", "response", "score": 3}
    by step     {"prompt", "completions": ["first", "second"], "labels": [true, false]}, as TRL has it

Pure functions. A row that is none of them raises RowError, which says what was seen and what is missing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from qserve.reward.checkpoints.heads import STEP_TOKEN
from qserve.rows.fields import Fields, RowError
from qserve.rows.sides import PAIRED
from qserve.rows.tools import template_fields_of
from qserve.training.data.rows import Row, answered_of, asked_of

__all__ = ["STEPS", "labels_of", "scored_of"]

STEPS = ("bad step", "good step")
"""The labels of a process reward model."""

_HELPSTEER = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
_FIELDS = ("scores", "attributes", "ratings", "labels", "score", "rating")


def labels_of(row: Mapping[str, Any], asked: tuple[str, ...]) -> tuple[str, ...]:
    """What the scores of this row are called: as `asked`, else as the row says; empty for a pair, and for neither;
    STEPS where single steps are labelled.

    Raises RowError for a pair, or for steps, where names of scores were asked for.
    """
    if isinstance(row.get("completions"), list) and isinstance(row.get("labels"), list):
        if asked:
            raise RowError("labels steps as good or bad, which have no other names; leave --labels out")
        return STEPS
    is_pair = any(row.get(name) is not None for name in PAIRED)
    if asked and is_pair:
        raise RowError("is a pair, whose sides have no scores; leave --labels out")
    if asked or is_pair:
        return asked
    return _named(row)


def _named(row: Mapping[str, Any]) -> tuple[str, ...]:
    field, value = _scores_in(row)
    if isinstance(value, Mapping):
        return tuple(map(str, value))
    if isinstance(value, list):
        return tuple(f"LABEL_{index}" for index in range(len(value)))
    if value is not None:
        return (field,)
    return _HELPSTEER if all(name in row for name in _HELPSTEER) else ()


def scored_of(row: Mapping[str, Any], labels: tuple[str, ...], unread: Counter[str] | None = None) -> Row:
    """`{"prompt", "response"}` of messages, and `scores` in the order of `labels`, or of the steps."""
    fields = Fields(row)
    made = _steps(fields) if labels == STEPS else {**answered_of(fields), "scores": _scores(row, labels)}
    fields.take(*(name for name in (_scores_in(row)[0],) if name))
    for name in (*labels, *_HELPSTEER):
        fields.take(name)
    if unread is not None:
        unread.update(fields.unread)
    return made


def _steps(fields: Fields) -> Row:
    """One answer of the assistant in which STEP_TOKEN ends each step, as the reward host reads it; 1: a good step."""
    prompt, steps, labels = asked_of(fields), fields.take("completions"), fields.take("labels")
    if not isinstance(steps, list) or not steps or not all(isinstance(one, str) and one.strip() for one in steps):
        raise RowError("must be a list of texts, one for each step", "completions")
    if not isinstance(labels, list) or len(labels) != len(steps) or not all(one in (True, False) for one in labels):
        raise RowError(f"must be a list of true and false, one for each of the {len(steps)} completions", "labels")
    if any(STEP_TOKEN in text for text in (*steps, *(turn["content"] for turn in prompt))):
        raise RowError(f"its text has {STEP_TOKEN}, which may be only at the end of a step")
    content = "".join(f"{step}{STEP_TOKEN}" for step in steps)
    response = [{"role": "assistant", "content": content}]
    return {"prompt": prompt, "response": response, "scores": list(map(float, labels)), **template_fields_of(fields)}


def _scores_in(row: Mapping[str, Any]) -> tuple[str, Any]:
    """(field, value) of the first field that holds scores."""
    for name in _FIELDS:
        if isinstance(row.get(name), Mapping | list | int | float):
            return name, row[name]
    return "", None


def _scores(row: Mapping[str, Any], labels: tuple[str, ...]) -> list[float]:
    value = _scores_in(row)[1]
    if isinstance(value, list):
        if len(value) != len(labels):
            raise RowError(f"has {len(value)} scores, but {len(labels)} labels are trained: {', '.join(labels)}")
        return [_number(name, one) for name, one in zip(labels, value, strict=True)]
    held = value if isinstance(value, Mapping) else row
    missing = [name for name in labels if name not in held]
    if missing:
        raise RowError(f"has no score {missing[0]!r}; it has {', '.join(map(str, held))}")
    return [_number(name, held[name]) for name in labels]


def _number(name: str, value: Any) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise RowError(f"the score {name!r} is {value!r}, which is not a number")
    return float(value)
