"""The command as a process: Ctrl-C, the fake server by itself, and what the self-test is made of."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import psutil
import pytest

from qserve.bench import self_test
from qserve.bench.client import LoadClient
from qserve.bench.connection import Address
from qserve.bench.endpoints import ENDPOINTS, Endpoint, Prompt
from qserve.bench.load import Stage
from qserve.bench.run import run_stage
from qserve.errors import UsageError
from tests.processes import words
from tests.tiny.bench.conftest import until


def test_ctrl_c_prints_what_there_is(fake, tmp_path):
    server, output = fake(5.0, 1.0), tmp_path / "result.json"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "qserve",
            "bench",
            "--url",
            server.url,
            "--concurrency",
            "3",
            "--output-len",
            "4",
            "--input-len",
            "3",
            "--duration",
            "600",
            "--state-dir",
            str(tmp_path),
            "--output",
            str(output),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: server.num_generations > 20 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, said
    assert "TTFT ms" in said
    assert "Traceback" not in said
    stage = json.loads(output.read_text())["stages"][0]
    assert stage["completed"] > 0
    assert stage["failed"] == 0


def fake_servers():
    """Children that are fake servers."""
    return [child for child in psutil.Process().children() if "qserve.bench.fake_server" in words(child)]


def test_the_fake_server_is_a_process_of_its_own_and_ends():
    with self_test.fake_server(0.0, 0.0) as url:
        (child,) = fake_servers()
        assert url.startswith("http://127.0.0.1:")
    assert not child.is_running()


@pytest.mark.parametrize("stage", [Stage(concurrency=2, duration_s=60.0), Stage(request_rate=50.0, num_prompts=9)])
async def test_prompts_that_can_not_be_made_are_the_users_error(fake, stage):
    def prompts():
        yield Prompt("one", 1)
        raise UsageError("no more")

    client = LoadClient(Address.of(fake().url), Endpoint("chat", ENDPOINTS["chat"], "fake"))
    with pytest.raises(UsageError, match="no more"):
        await run_stage(client, stage, prompts(), 0, asyncio.Event())
    client.close()


async def test_the_self_test_measures_every_chunk(fake):
    """Counts only: times are for `qserve bench --self-test`, on a quiet machine."""
    server = fake(2.0, 1.0)
    stage = Stage(concurrency=4, num_prompts=12)
    seen = await self_test._load(server.url, stage, 20, asyncio.Event(), lambda running: None)
    assert (seen.completed, seen.failed, seen.num_chunks) == (12, 0, 240)
    assert seen.itl.num_values == 12 * 19
    assert seen.ttft.p50 >= 2.0 * 0.98
    assert seen.tpot.p50 > 0
