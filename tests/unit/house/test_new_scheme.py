"""A stored quantization scheme is a row of core/schemes.py and a line of each engine that runs it, and nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qserve.core.schemes import SCHEMES
from qserve.hub.bundled import bundled_config
from tests.unit.house.sources import PACKAGE, tree_of

# A format that nobody has: 6 bits a weight, and for 64 of them a scale and a zero point in 16 bit.
ROW = """
        Scheme(
            "weft6", 6, 80,
            parts=(
                Part("codes", "U8", "weight", 6),
                Part("scales", "F16", "group", 16),
                Part("zeros", "F16", "group", 16),
            ),
            words=("int8",), marks=(Mark("weft", {"bits": 6}, 64),),
            endings=(("-WEFT6", {"quant_method": "weft", "bits": 6}),),
            packages=("weft",), unpacked=WeightFormat("weft6", 0.8125),
        ),"""
CONFIG = {"quant_method": "weft", "bits": 6, "ignore": ["lm_head"]}
EDITS = {
    "core/schemes.py": ("    for scheme in (", f"    for scheme in ({ROW}"),
    "planner/engines/transformers/schemes.py": ("_LOADED = frozenset({", '_LOADED = frozenset({\n    "weft6",'),
    "planner/engines/vllm/schemes.py": ("_STORED = {", '_STORED = {\n    "weft6": _Kernels((8, 0)),'),
}
MOST_FILES = 3

TABLES_ELSEWHERE = {
    "core/tensors.py": "bytes of an element by the name of its dtype",
    "planner/engines/vllm/schemes.py": "which of them vLLM runs, and on which cards and CPUs",
    "planner/speed/terms/card.py": "how much faster a card multiplies numbers of a format",
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the scheme added, and a checkpoint of Qwen3-8B that is stored so."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, root / "qserve", copy_function=os.symlink)
    shutil.copytree(PACKAGE.parent / "configs", root / "configs")
    for name, (before, after) in EDITS.items():
        file = root / "qserve" / name
        text = file.read_text()
        assert text.count(before) == 1, f"{name} is no longer edited at {before!r}"
        file.unlink()
        file.write_text(text.replace(before, after))
    (root / "stored").mkdir()
    (root / "stored" / "config.json").write_text(json.dumps({**base(), "quantization_config": CONFIG}))
    return root


def base() -> dict[str, Any]:
    return dict(bundled_config("Qwen/Qwen3-8B") or {})


def plan(copy: Path, *arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "qserve", "plan", "--gpu", "rtx-4090", "--json", *arguments]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_it_is_planned_by_the_config_of_its_checkpoint(copy: Path, engine: str) -> None:
    found = plan(copy, "--model", str(copy / "stored"), "--engine", engine)
    assert (found["quant"]["scheme"], found["engine"]) == ("weft6", engine)
    spec = base()
    hidden, inner, layers = spec["hidden_size"], spec["intermediate_size"], spec["num_hidden_layers"]
    heads = (2 * spec["num_attention_heads"] + 2 * spec["num_key_value_heads"]) * spec["head_dim"]
    linear = layers * hidden * (heads + 3 * inner)
    norms = layers * 2 * (hidden + spec["head_dim"]) + hidden
    stored = linear * 6 // 8 + linear // 64 * 4 + 2 * (norms + 2 * spec["vocab_size"] * hidden)
    assert found["devices"][0]["weights_bytes"] == pytest.approx(stored, rel=0.01)


def test_it_is_planned_by_the_name_of_its_repository(copy: Path) -> None:
    found = plan(copy, "--model", "somebody/Qwen3-8B-WEFT6", "--engine", "transformers", "--quant", "int8")
    assert (found["quant"]["scheme"], found["quant"]["checkpoint"]) == ("weft6", "somebody/Qwen3-8B-WEFT6")
    assert any("needs more than the set-up installs: pip install weft" in note for note in found["notes"])


def test_as_few_files_are_edited_as_are_promised() -> None:
    assert len(EDITS) <= MOST_FILES


NAME = re.compile("|".join(f"[\"']{re.escape(name)}[\"']" for name in SCHEMES))


def schemes_of(node: ast.Dict) -> list[str]:
    return [key.value for key in node.keys if isinstance(key, ast.Constant) and key.value in SCHEMES]


def test_no_other_file_has_a_table_of_what_schemes_are() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if len(NAME.findall(path.read_text())) > 1
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Dict) and len(schemes_of(node)) > 1
    }
    assert found == set(TABLES_ELSEWHERE)


def test_every_engine_names_only_schemes_that_there_are() -> None:
    """A misspelt name in an engine's own set would be a scheme that it never runs."""
    for engine in ("transformers", "vllm"):
        tree = tree_of(PACKAGE / "planner" / "engines" / engine / "schemes.py")
        tables = [node for statement in tree.body if isinstance(statement, ast.Assign) for node in ast.walk(statement)]
        named = {
            item.value
            for node in tables
            for item in (node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Set) else ())
            if isinstance(item, ast.Constant)
        }
        assert named
        assert named <= set(SCHEMES)
