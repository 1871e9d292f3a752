"""Another service of the program that is attacked, whose rewards a recipe makes."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from streams import ended, wait_for

from attacks.service import Service

__all__ = ["with_recipe"]


@asynccontextmanager
async def with_recipe(service: Service, recipe: str) -> AsyncIterator[Service]:
    """`recipe`: its YAML. The keys are those of `service`."""
    assert isinstance(service.process.args, list)
    attacker = service.http.headers["authorization"].removeprefix("Bearer ")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file, ready = folder / "rewards.yaml", folder / "ready.json"
        file.write_text(recipe)
        command = [
            str(service.process.args[0]),
            "up",
            "--reward",
            str(file),
            "--port",
            "0",
            "--no-ui",
            "--state-dir",
            str(folder),
            "--ready-file",
            str(ready),
            "--api-key",
            attacker,
            "--api-key",
            service.other_key,
        ]
        with ended(command, folder / "up.log") as process:
            await asyncio.to_thread(wait_for, ready.exists, process)
            yield Service(json.loads(ready.read_text())["url"], process, service.http, service.other_key)
