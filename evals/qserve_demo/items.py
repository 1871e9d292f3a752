"""Loads the items that lie beside this file, so that the tasks run from any folder and with no network.

The items are written by `python -m qserve.demo.make_evals`: held-out questions of the demo model's own tasks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets


def choice(**_: Any) -> dict[str, datasets.Dataset]:
    """Items of qserve_demo_choice: prompt, choices, gold. lm-eval hands over its metadata, which nothing here needs."""
    return {"test": _load("choice.jsonl")}


def generate(**_: Any) -> dict[str, datasets.Dataset]:
    """Items of qserve_demo_generate: prompt, answer."""
    return {"test": _load("generate.jsonl")}


def think(**_: Any) -> dict[str, datasets.Dataset]:
    """Items of qserve_demo_think: question, answer."""
    return {"test": _load("think.jsonl")}


def text(**_: Any) -> dict[str, datasets.Dataset]:
    """Items of qserve_demo_text: text."""
    return {"test": _load("text.jsonl")}


def _load(name: str) -> datasets.Dataset:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return datasets.Dataset.from_list([json.loads(line) for line in text.splitlines()])
