"""What comes after a training run that saved an adapter: its base with room for it, and the request that loads it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from qserve.runs.training_commands import load_command, serve_command


def test_an_adapter_is_loaded_into_a_service_of_its_base(tmp_path: Path) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    assert serve_command("lora", str(folder)) == f"qserve up --model '{folder}'"
    assert load_command("lora", str(folder)) is None
    described = {"r": 20, "base_model_name_or_path": "Qwen/Qwen3-8B"}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    served = serve_command("lora", str(folder))
    assert served == "qserve up --model Qwen/Qwen3-8B --engine vllm --enable-lora --max-lora-rank 32"
    load = load_command("grpo", str(folder))
    assert load is not None
    words = shlex.split(load)
    assert words[1].endswith("/v1/qserve/adapters")
    assert json.loads(words[-1]) == {"name": "my run", "path": str(folder), "load_inplace": True}


def test_a_reward_model_is_merged_when_it_is_served(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    assert serve_command("reward", str(tmp_path)) == f"qserve up --reward {tmp_path}"
    assert load_command("reward", str(tmp_path)) is None
