"""The vLLM server as a child of the reward worker: started from the plan, heard as it starts, asked over a socket."""

from __future__ import annotations

import asyncio
import secrets
import sys
from dataclasses import replace
from typing import Any

from qserve.client.answer import Unreachable
from qserve.client.api import ApiClient
from qserve.engines.vllm.launch.server import VllmLaunch
from qserve.errors import BrokenCheckpoint
from qserve.worker.process import WorkerSpec, report_phase

__all__ = ["VllmServer"]

_POLL_S = 0.25


class VllmServer:
    """`async with VllmServer(spec) as server`: running and answering inside, gone afterwards."""

    def __init__(self, spec: WorkerSpec) -> None:
        """`spec` is the worker's: the server gets a socket and a key of its own."""
        socket = spec.socket.with_name(f"{spec.socket.stem}-vllm.sock")
        self._spec = replace(spec, models=("reward",), socket=socket, tcp=None, key=secrets.token_urlsafe(32))
        self._launch = VllmLaunch(self._spec)
        self._launch.command += ("--runner", "pooling")
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> VllmServer:
        """Raises what the log says where it does not come up, in our own words."""
        self._client = ApiClient("http://vllm", self._spec.key, socket=self._spec.socket)
        self._process = await asyncio.create_subprocess_exec(
            *self._launch.command,
            env=dict(self._launch.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._hearing = asyncio.create_task(self._hear(self._process))
        try:
            await self._until_ready(self._process)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            await self._process.wait()
        await self._hearing

    async def ended(self) -> int:
        """Waits until the server is gone; its exit status."""
        assert self._process is not None, "it was started"
        return await self._process.wait()

    async def rewards(self, token_ids: list[list[int]]) -> tuple[int, Any]:
        """Status, and the raw rewards or, where the status is not 200, what vLLM said.

        Raises Unreachable where it can't be reached.
        """
        body = {"model": self._spec.models[0], "input": token_ids, "use_activation": False}
        answer = await self._client.ask("POST", "/classify", body)
        if answer.status != 200:
            return answer.status, answer.text[:500]
        rows = sorted(answer.json()["data"], key=lambda row: row["index"])
        return 200, [row["probs"][0] for row in rows]

    async def memory(self) -> dict[str, Any]:
        """What its processes hold, as GET /v1/qserve/memory tells it."""
        assert self._process is not None, "it was started"
        return await self._launch.memory(self._ask, self._process.pid)

    async def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        try:
            answer = await self._client.ask(method, path, body)
        except Unreachable:
            return 0, b""
        return answer.status, answer.body

    async def _hear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None, "it is a pipe"
        async for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            sys.stderr.write(f"vllm: {line}\n")
            if (phase := self._launch.hear(line)) is not None:
                report_phase(f"vLLM: {phase}")

    async def _until_ready(self, process: asyncio.subprocess.Process) -> None:
        while process.returncode is None:
            if (await self._ask("GET", "/health", b""))[0] == 200:
                status, said = await self.rewards([[0]])
                if status == 200:
                    return
                if status < 500:  # asking again would change nothing
                    raise BrokenCheckpoint(f"vLLM started, but refuses to classify a text of one token: {said}")
            await asyncio.sleep(_POLL_S)
        await self._hearing
        raise self._launch.failure(process.returncode)
