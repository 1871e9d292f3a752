"""The command as a process: Ctrl-C, the fake server by itself, and what the self-test is made of."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys

import psutil

from qserve.bench import self_test
from qserve.bench.load import Stage
from tests.tiny.bench.conftest import until


def test_ctrl_c_prints_what_there_is(fake, tmp_path):
    server, output = fake(5.0, 1.0), tmp_path / "result.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "qserve", "bench", "--url", server.url, "--concurrency", "3", "--output-len", "4",
         "--input-len", "3", "--duration", "600", "--state-dir", str(tmp_path), "--output", str(output)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        until(lambda: server.num_answered > 20 or process.poll() is not None)
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


def test_the_fake_server_is_a_process_of_its_own_and_ends():
    with self_test.fake_server(0.0, 0.0) as url:
        (child,) = [one for one in psutil.Process().children() if "qserve.bench.fake_server" in " ".join(one.cmdline())]
        assert url.startswith("http://127.0.0.1:")
    assert not child.is_running()


async def test_the_self_test_measures_every_chunk(fake):
    """Counts only: times are for `qserve bench --self-test`, on a quiet machine."""
    server = fake(2.0, 1.0)
    stage = Stage(concurrency=4, num_prompts=12)
    seen = await self_test._load(server.url, stage, 20, asyncio.Event(), lambda running: None)
    assert (seen.completed, seen.failed, seen.num_chunks) == (12, 0, 240)
    assert seen.itl.num_values == 12 * 19
    assert seen.ttft.p50 >= 2.0 * 0.98
    assert seen.tpot.p50 > 0
