"""Schemathesis reads /openapi.json and tries what it allows, and what it forbids, on the running gateway."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

# Which fields exclude each other (prompt and messages, best_of and n, …) JSON Schema can't tell: those 400s are right.
NOT_TOLD_BY_A_SCHEMA = "positive_data_acceptance"


async def test_no_request_that_the_schema_can_think_of_breaks_the_gateway(running, tmp_path):
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "--no-color", "run",
        "--header", "Authorization: Bearer sk-client-4f6c", "--phases", "examples,coverage,fuzzing", "--seed", "1",
        "--checks", "all", "--exclude-checks", NOT_TOLD_BY_A_SCHEMA, "--max-examples", "60", "--max-time", "15",
    ]  # fmt: skip
    async with running(max_num_seqs=8) as stack:
        before = (await stack.debug())["requests"]
        process = await asyncio.create_subprocess_exec(
            *command, f"{stack.url}/openapi.json", cwd=tmp_path, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        assert (await stack.debug())["requests"] > before, "the fuzzer never got past the gateway's own checks"
        async with stack.http.get(stack.url + "/metrics") as response:
            samples = [line for line in (await response.text()).splitlines() if "requests_total{" in line]
    assert samples and not any('status="5' in line for line in samples), samples
