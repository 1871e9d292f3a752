"""A stored quantization scheme is a row of core/schemes.py and a line of each engine that runs it, and nothing else."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from qserve.core.schemes import SCHEMES
from qserve.hub.bundled import bundled_config
from tests.house.copied_package import CopiedPackage
from tests.house.sources import PACKAGE, tree_of

# A format that nobody has: 6 bits a weight, and for 64 of them a scale and a zero point in 16 bit.
ROW = """        Scheme(
            "weft6", 6, 80,
            parts=(
                Part("codes", "U8", "weight", 6),
                Part("scales", "F16", "group", 16),
                Part("zeros", "F16", "group", 16),
            ),
            words=("int8",), marks=(Mark("weft", {"bits": 6}, 64),),
            endings=(("-WEFT6", {"quant_method": "weft", "bits": 6}),),
            packages=("weft",), unpacked=WeightFormat("weft6", 0.8125),
        ),
"""
CONFIG = {"quant_method": "weft", "bits": 6, "ignore": ["lm_head"]}
LOADS = """
import json
from qserve.core.hardware import CpuFeatures, parse_gpu
from qserve.planner.engine import own_engines

(card,) = parse_gpu("t4")
print(json.dumps({
    engine.name: [engine.planner.loads("weft6"), engine.planner.runs_stored("weft6", card, CpuFeatures())]
    for engine in own_engines()
}))
"""

TABLES_ELSEWHERE = {
    "core/tensors.py": "bytes of an element by the name of its dtype",
    "derive/quantize/in_environment.py": "what llm-compressor is told for those that qserve quantize makes",
    "engines/vllm/plan/schemes.py": "which of them vLLM runs, and on which cards and CPUs",
    "planner/speed/terms/card.py": "how much faster a card multiplies numbers of a format",
}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> CopiedPackage:
    """With the scheme added, and a checkpoint of Qwen3-8B that is stored so."""
    copy = CopiedPackage(tmp_path_factory.mktemp("checkout"))
    copy.insert("qserve/core/schemes.py", '        Scheme("fp32",', ROW)
    copy.insert("qserve/engines/transformers/plan/schemes.py", '"fp32", "bf16"', '"weft6", ')
    copy.insert("qserve/engines/vllm/plan/schemes.py", '    "fp32": _Kernels(', '    "weft6": _Kernels((8, 0)),\n')
    (copy.folder / "stored").mkdir()
    (copy.folder / "stored" / "config.json").write_text(json.dumps({**base(), "quantization_config": CONFIG}))
    return copy


def base() -> dict[str, Any]:
    return dict(bundled_config("Qwen/Qwen3-8B") or {})


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_it_is_planned_by_the_config_of_its_checkpoint(package: CopiedPackage, engine: str) -> None:
    found = package.plan("--gpu", "rtx-4090", "--model", str(package.folder / "stored"), "--engine", engine)
    assert (found["quant"]["scheme"], found["engine"]) == ("weft6", engine)
    spec = base()
    hidden, inner, layers = spec["hidden_size"], spec["intermediate_size"], spec["num_hidden_layers"]
    heads = (2 * spec["num_attention_heads"] + 2 * spec["num_key_value_heads"]) * spec["head_dim"]
    linear = layers * hidden * (heads + 3 * inner)
    norms = layers * 2 * (hidden + spec["head_dim"]) + hidden
    stored = linear * 6 // 8 + linear // 64 * 4 + 2 * (norms + 2 * spec["vocab_size"] * hidden)
    assert found["devices"][0]["weights_bytes"] == pytest.approx(stored, rel=0.01)


def test_it_is_planned_by_the_name_of_its_repository(package: CopiedPackage) -> None:
    model = ("--model", "somebody/Qwen3-8B-WEFT6", "--quant", "int8")
    found = package.plan("--gpu", "rtx-4090", "--engine", "transformers", *model)
    assert (found["quant"]["scheme"], found["quant"]["checkpoint"]) == ("weft6", "somebody/Qwen3-8B-WEFT6")
    assert any("needs more than the set-up installs: pip install weft" in note for note in found["notes"])


def test_each_engine_runs_it_as_its_line_says(package: CopiedPackage) -> None:
    assert package.run(LOADS) == {"transformers": [True, True], "vllm": [True, False]}


def test_three_files_are_edited_for_it(package: CopiedPackage) -> None:
    assert len(package.touched) == 3


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
        tree = tree_of(PACKAGE / "engines" / engine / "plan" / "schemes.py")
        tables = [node for statement in tree.body if isinstance(statement, ast.Assign) for node in ast.walk(statement)]
        named = {
            item.value
            for node in tables
            for item in (node.keys if isinstance(node, ast.Dict) else node.elts if isinstance(node, ast.Set) else ())
            if isinstance(item, ast.Constant)
        }
        assert named
        assert named <= set(SCHEMES)
