"""What a worker of ours tells once it runs: clients hear the limits of the pool that was made, not the planned ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.worker.base import UnixAddress, WorkerFacts
from qserve.worker.limits import EngineLimits
from qserve.worker.module_launch import ModuleProcess


async def told(folder: Path, status: int, limits: EngineLimits) -> WorkerFacts:
    facts = WorkerFacts("chat", ("m",), UnixAddress(folder / "s"), "key", max_num_seqs=64, max_model_len=2048)

    async def ask(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        assert (method, path, body) == ("GET", "/v1/qserve/limits", b"")
        return status, json.dumps(asdict(limits)).encode()

    return await ModuleProcess("module", {}, folder / "spec.json").introduce(ask, facts)


async def test_the_gateway_is_told_the_limits_of_the_pool(tmp_path: Path) -> None:
    facts = await told(tmp_path, 200, EngineLimits(300, 1, 2400, 4096, 16384))
    assert (facts.max_model_len, facts.max_num_seqs) == (300, 1)
    assert (facts.max_prompt_bytes, facts.max_positions, facts.most_stretched) == (2400, 4096, 16384)


async def test_a_worker_that_has_none_keeps_its_plans(tmp_path: Path) -> None:
    facts = await told(tmp_path, 404, EngineLimits(300, 1, 2400, 4096))
    assert (facts.max_model_len, facts.max_num_seqs, facts.max_prompt_bytes) == (2048, 64, None)


@pytest.mark.parametrize(("status", "why"), [(0, "it can't be reached"), (500, "status 500")])
async def test_a_worker_that_does_not_say_what_it_holds(tmp_path: Path, status: int, why: str) -> None:
    async def ask(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return status, b""

    with pytest.raises(UsageError, match=why):
        await ModuleProcess("module", {}, tmp_path / "spec.json").memory(ask, pid=1)


@pytest.mark.parametrize(("is_outside", "why"), [(False, "when memory runs out"), (True, "by a person or another")])
def test_a_kill_is_blamed_on_memory_only_where_it_may_be(is_outside: bool, why: str, tmp_path: Path) -> None:
    failure = ModuleProcess("module", {}, tmp_path / "spec.json").failure(-9, is_outside=is_outside)
    assert "killed by SIGKILL" in str(failure) and why in str(failure)
