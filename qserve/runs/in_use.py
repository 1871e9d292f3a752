"""Which running services use a model of the hub, as the store knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from qserve.hub.names import matching_ids
from qserve.runs.records import StoredRun, StoredWorker

__all__ = ["runs_using"]

_NAME = re.compile(r"[\w./-]+")


def runs_using(runs: Iterable[StoredRun], model_id: str, commits: Collection[str]) -> tuple[StoredRun, ...]:
    """Those of `runs` that are running and use one of these commits of `model_id`, in their order.

    The plan of a worker says what it loaded. What has no plan of its own (a draft model, an adapter, a model that is
    trained) counts where the command line names it.
    """
    return tuple(run for run in runs if run.state == "running" and _uses(run, model_id, commits))


def _uses(run: StoredRun, model_id: str, commits: Collection[str]) -> bool:
    if any(_loads(worker, model_id, commits) for worker in run.workers):
        return True
    if any(_same(_planned(worker)[0], model_id) for worker in run.workers):
        return False  # another commit of it, or a quantized sibling in its place
    return any(_names(word, model_id) for word in run.command)


def _loads(worker: StoredWorker, model_id: str, commits: Collection[str]) -> bool:
    model, loaded, commit = _planned(worker)
    if not _same(loaded, model_id):
        return _is_in_cache_of(loaded, model_id)
    return commit is None or loaded != model or commit in commits


def _planned(worker: StoredWorker) -> tuple[str, str, str | None]:
    """The model, the checkpoint that is loaded for it, and the commit of the model."""
    model, quant = (worker.plan.get(name, {}) for name in ("model", "quant"))
    return str(model.get("id", "")), str(quant.get("checkpoint", "")), model.get("revision")


def _same(name: str, model_id: str) -> bool:
    return name.lower() == model_id.lower()


def _is_in_cache_of(text: str, model_id: str) -> bool:
    """Whether it is a path into the cache's folder of the model."""
    return f"models--{model_id.replace('/', '--')}/" in text


def _names(word: str, model_id: str) -> bool:
    """Whether a word of a command line names the model: by its id, its folder, or a short name."""
    value = word.rpartition("=")[2].partition("@")[0]
    is_there = any(_same(name, model_id) for name in _NAME.findall(word)) or _is_in_cache_of(word, model_id)
    return is_there or bool(matching_ids(value, [model_id]))
