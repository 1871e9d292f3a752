"""The UI's process starts when it is wanted, fails alone, is tried again, and ends with the service."""

from __future__ import annotations

import asyncio
import importlib.util
import sys

import psutil
import pytest

from qserve.errors import MissingExtra
from qserve.gateway.settings import GatewaySettings
from qserve.supervisor import web_ui
from qserve.supervisor.record import RunRecord
from qserve.worker.base import WorkerState
from qserve.worker.module_launch import ModuleProcess

REFUSES = "import sys; print('qserve-worker failed: no luck', file=sys.stderr); sys.exit(1)"
LIVES = "import time; time.sleep(611)"


class _Scripted(ModuleProcess):
    """`python -c CODE` in place of the UI; ready at once."""

    code = LIVES

    def begin(self) -> None:
        super().begin()
        self.command = (sys.executable, "-c", _Scripted.code)

    async def is_ready(self, ask) -> bool:
        return _Scripted.code is LIVES

    async def is_well(self, ask) -> bool:
        return True


@pytest.fixture
def hosted(tmp_path, monkeypatch):
    monkeypatch.setattr(web_ui, "ModuleProcess", _Scripted)
    record = RunRecord(tmp_path / "run")
    return lambda choice, keys=(): web_ui.hosted_ui(choice, "http://h", GatewaySettings(keys=keys), tmp_path, record)


def _is_there() -> bool:
    """Whether a process that runs `LIVES` is a child of ours."""
    for child in psutil.Process().children():
        try:
            if LIVES in child.cmdline():
                return True
        except psutil.Error:  # it ended between being listed and being asked
            continue
    return False


async def until(holds) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def test_it_starts_when_it_is_wanted_and_ends_with_the_service(hosted, monkeypatch):
    monkeypatch.setattr(_Scripted, "code", LIVES)
    async with hosted(None) as ui:
        await asyncio.sleep(0.1)
        assert not _is_there()
        ui.wanted.set()
        await until(lambda: ui.worker.state is WorkerState.READY)
        assert _is_there()
    assert not _is_there()


async def test_it_may_start_at_once_or_never(hosted, monkeypatch):
    monkeypatch.setattr(_Scripted, "code", LIVES)
    async with hosted(True) as ui:
        await until(lambda: ui.worker.state is WorkerState.READY)
    async with hosted(False) as ui:
        assert ui is None


async def test_a_failed_start_is_told_and_tried_again_on_the_next_visit(hosted, monkeypatch):
    monkeypatch.setattr(_Scripted, "code", REFUSES)
    async with hosted(None) as ui:
        ui.wanted.set()
        await until(lambda: ui.worker.state is WorkerState.FAILED and not ui.wanted.is_set())
        assert ui.worker.detail == "no luck"
        monkeypatch.setattr(_Scripted, "code", LIVES)
        ui.wanted.set()
        await until(lambda: ui.worker.state is WorkerState.READY)


async def test_its_file_is_the_users_alone_and_has_no_key_where_none_is_asked(hosted, tmp_path):
    for keys in ((), ("sk-mine",)):
        async with hosted(None, keys) as ui:
            file = tmp_path / "ui.json"
            assert file.stat().st_mode & 0o077 == 0
            told = file.read_text()
        assert "sk-mine" not in told
        assert (ui.api_key in told) == bool(keys)


def test_without_gradio_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r'pip install "gradio>='):
        web_ui.check_installed()
