"""Runs a worker process: reads its specification, reports on standard error, ends with its service.

What a worker does inside of it is its own: `serve` loads and then calls `listen`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import uvicorn
import uvloop
from starlette.types import ASGIApp

from qserve.errors import QserveError
from qserve.worker.base import TcpAddress, UnixAddress
from qserve.worker.process import end_with_service, report_failure, report_phase
from qserve.worker.unused_packages import leave_out_unused

__all__ = ["end", "listen", "on_term", "run"]

_log = logging.getLogger("qserve.worker")
_OUT_OF_MEMORY = 3


def run(
    serve: Callable[[dict[str, Any]], Coroutine[Any, Any, None]],
    advice: str,
    first_phase: str = "importing torch and transformers",
) -> None:
    """Run `serve` over what stands in the JSON file named on the command line.

    A QserveError is told to the parent in its own words and becomes the exit status; `advice` says what helps where
    memory ran out while loading, `first_phase` what `serve` begins with.
    """
    end_with_service()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    warnings.simplefilter("default")
    document = json.loads(Path(sys.argv[1]).read_text())
    # uvicorn, too, ends the process by this signal once it has shut down.
    signal.signal(signal.SIGTERM, on_term)
    leave_out_unused(document)
    report_phase(first_phase)
    try:
        uvloop.run(serve(document))
    except QserveError as error:
        report_failure(str(error))
        end(error.exit_status)
    except MemoryError as error:
        why = f" ({error})" if str(error) else ""
        report_failure(f"the machine ran out of memory while loading{why}; {advice}")
        end(_OUT_OF_MEMORY)
    except Exception:
        _log.exception("the worker failed")
        end(1)


async def listen(app: ASGIApp, address: UnixAddress | TcpAddress, lifespan: Literal["on", "off"] = "off") -> None:
    """Serve `app` until the process is told to stop; `lifespan` is "on" where it starts tasks."""
    place = {"uds": str(address.path)} if isinstance(address, UnixAddress) else vars(address)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            **place,
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
            lifespan=lifespan,
            timeout_graceful_shutdown=1,
        )
    )
    report_phase("listening")
    await server.serve()


def end(status: int) -> None:
    """Ends the process now. An orderly exit would wait for ever for a thread that computes, if one runs already."""
    _remove_offloaded()
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


def on_term(number: int, _frame: object) -> None:
    """What SIGTERM does to a worker: what it wrote to disk goes with it."""
    _remove_offloaded()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _remove_offloaded() -> None:
    """Remove weights that this process wrote to disk, if it came so far as to write any."""
    placement = sys.modules.get("qserve.model.placement")
    if placement is not None:
        placement.remove_offload_folder()
