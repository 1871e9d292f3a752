"""docs/trainers.md: its code compiles, its bodies are bodies, its paths are routes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from qserve.gateway.routes import ROUTES
from qserve.reward.protocols.job import ModelInfo
from qserve.reward.protocols.table import PROTOCOLS

PAGE = (Path(__file__).parents[4] / "docs" / "trainers.md").read_text()
SCRIPT = Path(__file__).parents[3] / "tiny" / "reward" / "trl_reward.py"


def test_python_blocks_compile():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 4
    for block in blocks:
        compile(block, "trainers.md", "exec")


def test_every_body_is_one_that_the_host_scores():
    bodies = re.findall(r"-d '(\{.*\})'", PAGE)
    assert len(bodies) == 3
    for body in bodies:
        request = PROTOCOLS["/v1/reward"].schema.model_validate_json(json.dumps(json.loads(body)))
        assert PROTOCOLS["/v1/reward"].job(request, ModelInfo("prm", {"step_token": "<extra_0>"})).texts


def test_every_path_is_a_route():
    paths = {route.path for route in ROUTES}
    named = set(re.findall(r"8000(/[\w/]+)", PAGE)) | set(re.findall(r"`(/[\w/]+)`", PAGE))
    assert named - {"/v1"} <= paths


def test_the_function_for_trl_is_the_one_that_a_step_was_made_with():
    shown = re.search(r"def reward\(.*?return .*?\n", PAGE, re.DOTALL)[0]
    for line in (
        "conversations = [prompt + completion for prompt, completion in zip(prompts, completions",
        'return [row["reward"] for row in answer.json()["data"]]',
    ):
        assert line in shown
    assert 'row["reward"] for row in answer.json()["data"]' in SCRIPT.read_text()
