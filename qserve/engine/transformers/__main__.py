"""The worker process: python -m qserve.engine.transformers SPEC.json

It loads, warms up, listens, and tells its parent how it goes on standard error (`qserve.engine.base`). It ends with its
parent, whatever kills that one.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn
import uvloop

from qserve.engine.process import WorkerSpec, end_with_parent, report_failure, report_phase
from qserve.errors import QserveError

if TYPE_CHECKING:
    from qserve.engine.transformers.engine import Engine

_log = logging.getLogger("qserve.worker")
_GENERATION_DIED = 70


async def _serve(spec: WorkerSpec) -> None:
    from qserve.engine.transformers.app import build_app

    engine = await _start_engine(spec)
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(engine, spec.models, spec.key),
            uds=str(spec.socket),
            loop="uvloop",
            http="httptools",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
    )
    report_phase("listening")
    try:
        await server.serve()
    finally:
        engine.stop()


async def _start_engine(spec: WorkerSpec) -> Engine:
    # Imported here: it takes seconds, and the parent has been told what they are spent on.
    from qserve.engine.transformers.batchers import make_batcher
    from qserve.engine.transformers.engine import Engine
    from qserve.engine.transformers.load import load
    from qserve.engine.transformers.scoring import PromptScorer

    report_phase("loading weights")
    loaded = load(spec.folder, spec.plan)
    report_phase("making the KV pool")
    loop = asyncio.get_running_loop()
    batcher = make_batcher(loaded.model, loop, spec.plan)
    scorer = PromptScorer(loaded.model, batcher, loop, spec.plan.workload.max_num_batched_tokens)
    batcher.start(on_death=_die)
    scorer.start()
    limits = spec.plan.workload
    engine = Engine(
        loaded,
        batcher,
        scorer,
        max_model_len=min(limits.max_model_len, batcher.kv_cache_tokens),
        max_num_seqs=limits.max_num_seqs,
    )
    report_phase("warming up")
    await engine.warm_up()
    # Loading leaves a million long-lived objects; without this every collection walks all of them.
    gc.collect()
    gc.freeze()
    return engine


def _die(error: BaseException) -> None:
    """Nothing can be generated any more: end at once, so that clients hear of it and the supervisor restarts us."""
    _log.error("generation stopped: %s", error)
    os._exit(_GENERATION_DIED)


def main() -> None:
    """Run the worker that the JSON file named on the command line describes."""
    end_with_parent()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    warnings.simplefilter("default")
    file = Path(sys.argv[1])
    spec = WorkerSpec.from_json(json.loads(file.read_text()))
    report_phase("importing torch and transformers")
    try:
        uvloop.run(_serve(spec))
    except QserveError as error:
        report_failure(str(error))
        _end(error.exit_status)
    except MemoryError:
        report_failure("the machine ran out of memory while loading; lower --max-num-seqs or --max-model-len")
        _end(3)
    except Exception:
        _log.exception("the worker failed")
        _end(1)


def _end(status: int) -> None:
    """Ends the process now. An orderly exit would wait for ever for the generating thread, if that runs already."""
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
