"""--device-map FILE and --max-memory on the command line: what is read, and what is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from qserve.cli.main import cli


def plan(*arguments: str) -> Result:
    fixed = ["plan", "--model", "Qwen/Qwen3-14B", "--quant", "bf16", "--gpu", "rtx-4090:2", "--max-model-len", "4096"]
    return CliRunner().invoke(cli, [*fixed, *arguments])


def placement(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)["placement"]
    return found


HALVES: dict[str, Any] = {"": 1, "model.embed_tokens": 0, "model.rotary_emb": 0} | {
    f"model.layers.{index}": 0 for index in range(20)
}


def test_json_and_yaml_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text(json.dumps(HALVES))
    (tmp_path / "map.yaml").write_text("\n".join(f"'{name}': cuda:{place}" for name, place in HALVES.items()))
    maps = [placement(plan("--device-map", str(tmp_path / name), "--json")) for name in ("map.json", "map.yaml")]
    assert maps[0] == maps[1]
    assert maps[0]["device_map"]["model.layers.19"] == 0
    assert maps[0]["device_map"]["model.layers.20"] == maps[0]["device_map"]["lm_head"] == 1


def test_words_are_modes() -> None:
    sequential, balanced = (placement(plan("--device-map", word, "--json")) for word in ("sequential", "balanced"))
    first = [sum(place == 0 for place in found["device_map"].values()) for found in (sequential, balanced)]
    assert first[0] > first[1]


def test_the_layout_is_drawn() -> None:
    drawn = plan("--device-map", "balanced").output
    assert "card 0  ██" in drawn
    assert "layers 0–" in drawn
    assert ", head" in drawn


def test_limits_make_room_for_others() -> None:
    found = placement(plan("--max-memory", "0=20GiB,1=20GiB", "--json"))
    assert set(found["device_map"].values()) == {0, 1}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"": 0, "model.leyers.3": 1}', "the model has no module model.leyers.3"),
        ("just words", "is not a mapping of module names to devices"),
        ("{unclosed: [", "is neither JSON nor YAML"),
        ("", "is not a mapping"),
        (b"\xff\xfe\x00\x01", "it is not text"),
    ],
)
def test_a_file_with_errors(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = tmp_path / "map.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    result = plan("--device-map", str(path))
    # What the arguments' own reader finds, click says; what the planner finds, cli/main.py does, with the same status.
    assert getattr(result.exception, "exit_status", result.exit_code) == 2
    said = " ".join(result.output.split()) + str(result.exception)
    assert message in said
    assert "map.json" in said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = plan("--device-map", str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert "No such file or directory; it takes auto, balanced, sequential, or a JSON or YAML file" in " ".join(
        result.output.split()
    )
