"""The worker process: python -m qserve.engines.transformers.worker SPEC.json

It loads, warms up, listens, and tells its parent how it goes on standard error (`qserve.worker.base`). It ends with its
parent, whatever kills that one.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from qserve.worker import worker_process
from qserve.worker.free_heap import giving_back_free_heap
from qserve.worker.heartbeat import Heartbeat, heartbeat_file
from qserve.worker.process import WorkerSpec, report_note, report_phase
from qserve.worker.quick_imports import quick_imports

if TYPE_CHECKING:
    from qserve.engines.transformers.worker.engine import Engine
    from qserve.model.load import LoadedModel
    from qserve.planner.plan import Plan

_log = logging.getLogger("qserve.worker")
_GENERATION_DIED = 70
# What takes the seconds of an import; the rest comes with it, or is small.
_IMPORTED = (
    "qserve.engines.transformers.worker.api.app",
    "qserve.engines.transformers.worker.api.prompt_workers",
    "qserve.engines.transformers.worker.batching.make",
    "qserve.engines.transformers.worker.batching.scoring",
    "qserve.engines.transformers.worker.engine",
    "qserve.model.load",
)
# Of a warm-up on a CPU: about a second on two cores.
_WARM_UP_OPERATIONS = 200_000_000_000


def prepare() -> None:
    """Import what every such worker and reward model needs (`qserve.worker.standby`)."""
    with quick_imports():
        for name in _IMPORTED:
            importlib.import_module(name)


async def _serve(document: dict[str, Any]) -> None:
    with quick_imports():
        from qserve.engines.transformers.worker.api.app import build_app
        from qserve.engines.transformers.worker.api.prompt_workers import prompt_workers

    spec = WorkerSpec.from_json(document)
    engine = await _start_engine(spec)
    prompts = prompt_workers(engine, spec.socket)
    try:
        await prompts.start()
        async with giving_back_free_heap():
            await worker_process.listen(build_app(engine, prompts, spec.models, spec.key), spec.address)
    finally:
        engine.stop()
        await prompts.close()


async def _start_engine(spec: WorkerSpec) -> Engine:
    # Imported here: it takes seconds, and the parent has been told what they are spent on.
    with quick_imports():
        from qserve.engines.transformers.worker.batching.make import make_batcher
        from qserve.engines.transformers.worker.batching.progress import beat_with_layers
        from qserve.engines.transformers.worker.batching.scoring import PromptScorer
        from qserve.engines.transformers.worker.card_trials import try_kernels_of
        from qserve.engines.transformers.worker.engine import Engine
        from qserve.hub.chat_template import read_template
        from qserve.hub.served_folder import clean_folder
        from qserve.model.card_share import keep_to_plan
        from qserve.model.load import load
        from qserve.model.load_cost import reset_peaks
        from qserve.model.packed_cache.folder import packed_folder
        from qserve.prompts.written_tokens import check_chat_template

    if spec.load_format != "dummy":
        check_chat_template(spec.folder, read_template(spec.folder))
    spec = replace(spec, folder=clean_folder(spec.folder, spec.plan.overrides))
    if not spec.plan.on_cpu:
        report_phase("trying kernels")
        try_kernels_of(spec.folder, spec.plan)
    report_phase("loading weights")
    keep_to_plan(spec.plan)
    packed = packed_folder(spec.packed_cache_bytes)
    loaded = load(spec.folder, spec.plan, spec.load_format, _log_progress, packed)
    for note in loaded.notes:
        report_note(note)
    if spec.verify_quant:
        loaded = _verified(spec, loaded)
    report_phase("making the KV pool")
    loop = asyncio.get_running_loop()
    batcher = make_batcher(loaded.model, loop, spec.plan)
    scorer = PromptScorer(loaded.model, batcher, loop, spec.plan.workload.max_num_batched_tokens)
    heartbeat = Heartbeat(heartbeat_file(spec.socket))
    beat_with_layers(loaded.model, heartbeat)
    batcher.start(on_death=_die)
    scorer.start(on_death=_die)
    limits = spec.plan.workload
    engine = Engine(
        loaded,
        batcher,
        scorer,
        max_model_len=min(limits.max_model_len, batcher.kv_cache_tokens),
        max_num_seqs=limits.max_num_seqs,
        heartbeat=heartbeat,
    )
    report_phase("warming up")
    reset_peaks()
    engine.prepare_grammars()
    await engine.warm_up(_warm_up_tokens(spec.plan, engine.max_model_len, loaded.model.device.type))
    # Loading leaves a million long-lived objects; without this every collection walks all of them.
    gc.collect()
    gc.freeze()
    return engine


def _verified(spec: WorkerSpec, loaded: LoadedModel) -> LoadedModel:
    from qserve.model.verify import verify_quant

    report_phase("comparing with the 16-bit weights")
    quality = verify_quant(spec.folder, spec.plan, loaded)
    report_note(str(quality))
    return replace(loaded, quality=quality)


def _log_progress(share: float) -> None:
    _log.debug("loading weights: %.0f %%", 100 * share)


def _warm_up_tokens(plan: Plan, max_model_len: int, device_type: str) -> int:
    """As many as a step may have, so that its memory is measured; on a CPU what takes about a second.

    `max_model_len` is that of the pool which was made, a token of which the answer takes.
    """
    most = min(plan.workload.max_num_batched_tokens, max_model_len - 1)
    if device_type == "cpu":
        most = min(most, _WARM_UP_OPERATIONS // (2 * plan.model.parameters))
    return max(1, most)


def _die(error: BaseException) -> None:
    """Nothing can be generated any more: end at once, so that clients hear of it and the supervisor restarts us."""
    _log.error("generation stopped: %s", error)
    os._exit(_GENERATION_DIED)


def main() -> None:
    """Run the worker that the JSON file named on the command line describes."""
    worker_process.run(_serve, "lower --max-num-seqs or --max-model-len")


if __name__ == "__main__":
    main()
