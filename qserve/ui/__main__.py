"""The UI worker: python -m qserve.ui SPEC.json

A worker process like the engines' (`qserve/worker/worker_process.py`), without torch: it listens on the unix socket
that the file names and ends with its parent. The file holds a `UISettings`.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.ui.settings import UISettings
from qserve.worker import worker_process
from qserve.worker.asgi import KeyGuard
from qserve.worker.base import UnixAddress
from qserve.worker.paused_collection import paused_collection


async def _serve(document: dict[str, Any]) -> None:
    # Imported here: it takes seconds, and the parent has been told what they are spent on.
    with paused_collection():
        from qserve.ui.process.app import build_app
        from qserve.ui.process.visitors import Visitors

    settings = UISettings.from_json(document)
    if settings.socket is None:
        raise UsageError("the UI worker's file does not say which socket to listen on: `socket` is missing")
    # A line for each message of its queue, about pandas' next release.
    warnings.filterwarnings("ignore", module=r"gradio\.")
    # Beside the socket, where only this user can enter: Gradio's own choice is open to all and outlives us.
    files = os.environ["GRADIO_TEMP_DIR"] = f"{settings.socket}.files"
    app = Visitors(build_app(settings), Path(files))
    guarded = KeyGuard(app, settings.key) if settings.key else app
    await worker_process.listen(guarded, UnixAddress(Path(settings.socket)), lifespan="on")


def main() -> None:
    """Run the worker that the JSON file named on the command line describes."""
    worker_process.run(_serve, "close other programs", first_phase="importing gradio")


if __name__ == "__main__":
    main()
