"""A new model family is a row of core/families.py, and its models are tables of configs/models.toml: nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qserve.core.families import FAMILIES
from qserve.core.model_spec import ModelSpec
from qserve.errors import UnknownArchitecture
from tests.house.copied_package import CopiedPackage
from tests.house.sources import PACKAGE, tree_of

ROW = """    Family(
        "qwen9_moe", "Qwen9Moe", "hybrid", head_dim=96, has_output_gate=True, linear_interval=3, has_experts=True,
        mtp_layers=1, vllm=InVllm(since=(0, 31)),
    ),
"""
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen9MoeForCausalLM"],
    "model_type": "qwen9_moe",
    "hidden_size": 1024,
    "num_hidden_layers": 9,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
MODEL = "Qwen/Qwen9-5B-A1B"
TABLE = "\n".join((f'[models."{MODEL}"]', *(f"{key} = {json.dumps(value)}" for key, value in CONFIG.items()), "\n"))
KV_BYTES_PER_TOKEN = 3 * 2 * 2 * 96 * 2  # three layers of full attention: keys and values, 2 heads of 96, in 16 bit

WORDS = "|".join(sorted({re.split(r"[^a-z]", name)[0] for name in FAMILIES}))
NAMED = re.compile(rf"([^\s/]*[^\s/a-z])?({WORDS})[^\s/]*|_(moe|vl)\w*", re.IGNORECASE)
# Where such a word is another thing's name.
ALLOWED = {
    "core/families.py": "the rows",
    "core/rope.py": "a rope type of config.json",
    "engines/vllm/plan/context.py": "a rope type of config.json",
    "hub/chat_template.py": "a format of tool calls, read from the chat template",
    "grammar/tool_calls.py": "a format of tool calls",
    "engines/transformers/worker/api/reading.py": "a format of tool calls",
    "engines/transformers/worker/parsing/qwen3_coder.py": "a format of tool calls",
    "engines/vllm/launch/chat_format.py": "vLLM's parser of thoughts, for all templates that have them",
    "reward/find.py": "the config.json that qserve writes for rules and judges",
    "demo/checkpoint.py": "the config.json of the demo model",
    "demo/tokenizer.py": "the tokenizer_config.json of the demo models",
    "demo/train_reward.py": "the config.json of the demo reward model",
}


def test_a_new_family_is_two_places(tmp_path: Path) -> None:
    with pytest.raises(UnknownArchitecture):
        ModelSpec.from_config(CONFIG)
    package = CopiedPackage(tmp_path)
    package.insert("qserve/core/families.py", '    Family("llama",', ROW)
    package.insert("configs/models.toml", "[variants]", TABLE)
    assert package.touched == {"configs/models.toml", "qserve/core/families.py"}

    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text(json.dumps(CONFIG))
    for model, engine in ((str(checkpoint), "vllm"), (MODEL, "transformers")):
        plan = package.plan(model, "--gpu", "h200", "--engine", engine)
        assert plan["engine"] == engine
        assert plan["model"]["architecture"] == "Qwen9MoeForCausalLM"
        assert plan["model"]["kv_bytes_per_token"] == KV_BYTES_PER_TOKEN


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Strings that are no docstrings, those in f-strings included."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value


def test_nothing_else_names_a_family() -> None:
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if re.search(f"{WORDS}|_moe|_vl", path.read_text(), re.IGNORECASE):  # few: to be quick
            name = str(path.relative_to(PACKAGE))
            found[name] = sorted({text for text in texts_of(tree_of(path)) if NAMED.fullmatch(text)})
    elsewhere = {name: texts for name, texts in found.items() if texts and name not in ALLOWED}
    assert elsewhere == {}, "give the family's row in core/families.py a field, and ask it"
    assert [name for name in ALLOWED if not found.get(name)] == [], "these names are gone: shorten the list"
