"""Supervises the web UI's process: starts it on the first visit and restarts it; its failures end nothing else.

A file names the API to call and its key; only the gateway reaches its socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from qserve.errors import MissingExtra, QserveError
from qserve.gateway.settings import GatewaySettings
from qserve.gateway.web import UiEndpoint
from qserve.packages import install_command
from qserve.supervisor.liveness.restarts import WorkerEvents
from qserve.supervisor.record import RunRecord
from qserve.supervisor.worker import SupervisedWorker
from qserve.ui.settings import UISettings
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerState, WorkerStatus
from qserve.worker.module_launch import ModuleProcess

__all__ = ["check_installed", "hosted_ui"]

_log = logging.getLogger("qserve.supervisor")
# No cards, no proxies, no telemetry.
_ENVIRONMENT = {"GRADIO_ANALYTICS_ENABLED": "False", "CUDA_VISIBLE_DEVICES": "", "NO_PROXY": "*", "no_proxy": "*"}
_INSTALL = install_command("gradio")


def check_installed() -> None:
    """Raises MissingExtra without Gradio."""
    if importlib.util.find_spec("gradio") is None:
        raise MissingExtra("gradio", "the web UI")


@contextlib.asynccontextmanager
async def hosted_ui(
    choice: bool | None, url: str, gateway: GatewaySettings, private: Path, record: RunRecord
) -> AsyncIterator[UiEndpoint | None]:
    """The UI of the service at `url`: started at once (True), on the first visit (None), or never (False).

    Its socket, its file and what is made for visitors lie in the `private` folder.
    """
    if choice is False:
        yield None
        return
    ui = _WebUi(url, gateway, private, record)
    if choice:
        ui.endpoint.wanted.set()
    running = asyncio.create_task(ui.run())
    try:
        yield ui.endpoint
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await ui.worker.stop()


class _WebUi:
    """The supervised process behind `/`, and the `endpoint` that the gateway knows it by."""

    def __init__(self, url: str, gateway: GatewaySettings, private: Path, record: RunRecord) -> None:
        """Nothing is started yet."""
        socket, key, api_key = private / "ui.sock", secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        worker = WorkerStatus(WorkerFacts("ui", ("web interface",), UnixAddress(socket), key, 1, 1))
        missing = importlib.util.find_spec("gradio") is None
        self.endpoint = UiEndpoint(worker, api_key, _INSTALL if missing else "")
        has_keys = gateway.needs_key
        settings = UISettings(
            url, api_key=api_key if has_keys else "", socket=str(socket), key=key, has_sign_in=has_keys
        )
        launch = ModuleProcess("qserve.ui", settings.to_json(), private / "ui.json")
        launch.environment = {**launch.environment, **_ENVIRONMENT}
        self.worker = SupervisedWorker(worker, launch, record.log_file("ui"), _event_recorder(record))

    async def run(self) -> None:
        """Start the process when it is wanted and restart it when it fails; never returns."""
        while True:
            await self.endpoint.wanted.wait()
            self.endpoint.worker.state = WorkerState.STARTING
            try:
                await self.worker.start()
                _log.info("the web UI's process is ready")
                await self.worker.watch()
            except QserveError as error:
                _log.warning("the web UI: %s", error)
                self.endpoint.worker.detail = str(error)
                self.endpoint.worker.state = WorkerState.FAILED
            self.endpoint.wanted.clear()


def _event_recorder(record: RunRecord) -> WorkerEvents:
    def report(worker: str, event: str, details: dict[str, Any]) -> None:
        record.event(worker, event, **details)

    return report
