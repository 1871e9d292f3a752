"""TRL's GRPO, unmodified, asks the host for its rewards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import KEY, Host
from tests.tiny.reward.plain_transformers import Plain

KIND = "sequence-classification"
SCRIPT = Path(__file__).with_name("grpo_step.py")


@pytest.fixture
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened(KIND, truncate="right"))
    yield one
    one.close()


def test_a_step_of_grpo_is_rewarded_by_the_host(host: Host, made: Callable[[str], Path], tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), host.url, KEY, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr[-4000:]
    step = json.loads(done.stdout.splitlines()[-1])
    plain, template = Plain(KIND, made(KIND)), host.scorer.template
    meant = [float(plain.values(template.encode(one).token_ids)[-1, 0]) for one in step["conversations"]]
    assert len(meant) == 4
    assert step["rewards"] == pytest.approx(meant, abs=1e-5)
    assert step["logged"] == pytest.approx(sum(meant) / 4, abs=1e-4)
