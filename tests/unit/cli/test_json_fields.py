"""--json of all commands: names in snake_case, units in the names of figures, one name for one thing."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli

CALLS = (
    "plan --model Qwen/Qwen3-32B --gpu rtx-4090 --quant 4bit",
    "plan --model Qwen/Qwen3-32B --gpu rtx-3060",
    "plan --model Qwen/Qwen3-8B --gpu l40s --users 20 --ttft 1s",
    "plan train --method lora --model Qwen/Qwen3-8B --gpu rtx-4090",
    "plan train --method sft --model Qwen/Qwen3-8B --gpu rtx-4090",
    "models",
    "runs",
    "doctor",
    "score {rows} --reward {recipe} --output {out}",
    "eval-reward {rows} --reward {recipe}",
    "reward check {rows} --reward {recipe}",
)
# Figures whose name says no unit, though they have one.
WITHOUT_UNIT = re.compile(r"(?:^|_)(?:seconds|duration|elapsed|time|milliseconds|bytes_total|mib|gib|mb|gb|sec|secs)$")


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, below in value.items():
            yield from numbers(below, f"{path}.{name}")
    elif isinstance(value, list):
        for below in value:
            yield from numbers(below, path)
    else:
        yield path, value


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    recipe, rows = tmp_path / "rewards.yaml", tmp_path / "rows.jsonl"
    recipe.write_text("parts:\n- {name: form, rule: regex, pattern: '[.]$'}\n")
    rows.write_text(json.dumps({"prompt": "p", "chosen": "Yes.", "rejected": "No"}) + "\n")
    return {"recipe": recipe, "rows": rows, "out": tmp_path / "out.jsonl"}


@pytest.mark.parametrize("call", CALLS)
def test_names_say_their_units(
    call: str, files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = CliRunner().invoke(cli, [*call.format(**files).split(), "--json"])
    document = json.loads(done.stdout)
    found = list(numbers(document))
    assert found
    names = {part for path, _ in found for part in path.split(".") if part}
    assert not {name for name in names if name != name.lower() and re.fullmatch(r"[A-Za-z_]+", name)}
    figures = {path.rpartition(".")[2] for path, value in found if isinstance(value, int | float) and value is not True}
    assert not {name for name in figures if WITHOUT_UNIT.search(name)}


@pytest.mark.parametrize("call", [call for call in CALLS if call.startswith("plan")])
def test_the_command_that_comes_next_has_one_name(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    document = json.loads(CliRunner().invoke(cli, [*call.split(), "--json"]).stdout)
    assert bool(document.get("next_command")) == document["fits"]
