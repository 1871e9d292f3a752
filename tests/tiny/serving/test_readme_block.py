"""README's block for one RTX 4090, on a machine without a card: each of its commands, with a small model of that shape.

What differs: `--model` is a folder with a small config.json and random weights, on the engine that runs here. The
deployment's other settings (4 bit, lengths, number of requests) stay.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from qserve.core import facts
from tests.tiny.serving.served import QSERVE, Service

ROOT = Path(__file__).parents[3]
SECTION = (ROOT / "README.md").read_text().partition("## One RTX 4090")[2].partition("\n## ")[0]
COMMANDS, CURL = re.findall(r"```bash\n(.*?)```", SECTION, re.DOTALL)
CALLS = [line.partition("#")[0].strip() for line in COMMANDS.splitlines() if line.startswith("qserve ")]
NAME = "Qwen/Qwen3-32B"
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """config.json of Qwen3-32B with fewer and narrower layers."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps({**facts.load("models")["models"][NAME], **SMALL}))
    return folder


def called(call: str) -> Any:
    """What a call of the block prints where no hub can be reached."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    words = [str(QSERVE), *shlex.split(call)[1:]]
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment)


def test_what_is_asked_before_the_download_answers_without_a_card() -> None:
    doctor, plan, pull, _ = CALLS
    assert called(doctor).returncode == 0
    done = called(plan)
    assert done.returncode == 0, done.stderr
    assert "Qwen/Qwen3-32B-AWQ" in done.stdout
    done = called(pull)  # its plan comes first, and then there is no hub
    assert "Qwen/Qwen3-32B-AWQ" in done.stdout + done.stderr
    assert done.returncode == 2 and "HF_HUB_OFFLINE" in done.stderr, done.stderr


def test_the_service_of_the_block_answers_its_curl(small: Path, tmp_path: Path) -> None:
    up = shlex.split(CALLS[-1])
    assert up[:2] == ["qserve", "up"]
    differs = ("--model", str(small), "--served-model-name", NAME, "--load-format", "dummy", "--engine", "transformers")
    service = Service((*up[2:], *differs, "--port", "0"), tmp_path).until_ready()
    try:
        (model,) = service.get("/v1/models").json()["data"]
        assert (model["id"], model["max_model_len"]) == (NAME, 8192)
        (entry,) = service.get("/v1/qserve/memory").json()["data"]
        assert entry["planned"]["quant"]["scheme"] == "bnb-nf4", "4bit of the deployment's file"
        curl = CURL.replace("http://127.0.0.1:8000", service.url).replace('"messages"', '"max_tokens": 4, "messages"')
        done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["usage"]["completion_tokens"] == 4, done.stdout
    finally:
        assert service.end() == 0, service.output
