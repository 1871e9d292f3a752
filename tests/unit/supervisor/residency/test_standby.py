"""A process that stands by: real processes with a module that imports nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qserve.supervisor.child import Child
from qserve.supervisor.residency.standby import Standby
from tests.processes import is_running
from tests.unit.supervisor.test_worker import until

MAIN = """
import os, sys
def prepare():
    assert "sklearn" in sys.modules, "it is left out"
    print("prepared", file=sys.stderr, flush=True)
def main():
    print("became", open(sys.argv[1]).read()[:20], os.environ["WHICH"], file=sys.stderr, flush=True)
    import time; time.sleep(600)
"""


class Launched:
    """What a standby reads of a launch."""

    def __init__(self, folder: Path, module: str = "stands", **environment: str) -> None:
        spec = folder / "spec.json"
        spec.write_text(json.dumps({"a": "spec of a worker"}))
        self.command = (sys.executable, "-m", module, str(spec))
        path = os.pathsep.join([str(folder), *sys.path])
        self.environment: Mapping[str, str] = {"PATH": "", "PYTHONPATH": path, **environment}


@pytest.fixture
def launch(tmp_path: Path) -> Launched:
    package = tmp_path / "stands"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(MAIN)
    return Launched(tmp_path)


async def stands_by(launch: Any, folder: Path) -> Standby:
    one = Standby("stands", launch, folder / "standby.log")
    await one.begin()
    return one


async def ended(child: Child) -> None:
    await child.end()
    await child.reap()


async def test_it_becomes_the_worker_with_its_environment_and_its_log(launch: Launched, tmp_path: Path) -> None:
    one, heard = await stands_by(launch, tmp_path), list[str]()
    log = tmp_path / "standby.log"
    await until(lambda: log.exists() and "stands by" in log.read_text())
    child = one.take(Launched(tmp_path, WHICH="that"), tmp_path / "chat.log", heard.append)  # type: ignore[arg-type]
    assert child is not None
    await until(lambda: 'became {"a": "spec of a wor that' in heard)
    assert "became" in (tmp_path / "chat.log").read_text() and "became" not in log.read_text()
    assert one.take(launch, tmp_path / "chat.log", heard.append) is None, "it was one"  # type: ignore[arg-type]
    await one.begin()
    await one.stop()
    assert is_running(child.pid), "it belongs to the worker now"
    await ended(child)


async def test_one_that_still_imports_is_taken_at_once(launch: Launched, tmp_path: Path) -> None:
    one, heard = await stands_by(launch, tmp_path), list[str]()
    child = one.take(Launched(tmp_path, WHICH="early"), tmp_path / "chat.log", heard.append)  # type: ignore[arg-type]
    assert child is not None
    await until(lambda: any(line.endswith("early") for line in heard))
    await ended(child)


@pytest.mark.parametrize("how", ["threads", "command"])
async def test_a_worker_that_it_can_not_become_starts_by_itself(launch: Launched, tmp_path: Path, how: str) -> None:
    one = await stands_by(launch, tmp_path)
    other = Launched(tmp_path, **({"OMP_NUM_THREADS": "1"} if how == "threads" else {}))
    if how == "command":
        other.command = (sys.executable, "-m", "vllm", "serve", other.command[-1])  # type: ignore[assignment]
    assert one.take(other, tmp_path / "chat.log", print) is None  # type: ignore[arg-type]
    await one.stop()


async def test_it_ends_with_its_service(launch: Launched, tmp_path: Path) -> None:
    one = await stands_by(launch, tmp_path)
    child = one._child
    assert child is not None
    child._drop_lifeline()
    async with asyncio.timeout(30):
        await child.ended()
    assert child.returncode == 0
    await one.stop()
