"""Which adapters the service has. Those of a model are in all of its replicas, or in none."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qserve.core.model_spec import ModelSpec
from qserve.errors import ModelNotFound, UsageError
from qserve.hub.adapter import PeftAdapter, check_base, read_adapter
from qserve.hub.folder import read_config
from qserve.supervisor.adapters.copies import Copies, LoadedAdapter
from qserve.supervisor.adapters.in_worker import AdapterRefused
from qserve.supervisor.deployment import ModelDeployment
from qserve.supervisor.runner import Worker
from qserve.supervisor.worker import SupervisedWorker
from qserve.wire.errors import ApiError
from qserve.worker.base import WorkerFacts

__all__ = ["AdapterShelf"]

_log = logging.getLogger("qserve.supervisor")


@dataclass(frozen=True)
class _Group:
    """The replicas of one model."""

    name: str
    deployment: ModelDeployment
    workers: tuple[Worker, ...]

    @property
    def here(self) -> tuple[SupervisedWorker, ...]:
        """Its workers. Raises ApiError where they are on other machines."""
        here = tuple(one for one in self.workers if isinstance(one, SupervisedWorker))
        if len(here) < len(self.workers):
            message = "its workers run on a cluster, and adapters are loaded on one machine only"
            raise ApiError(501, message, "not_supervised")
        return here

    @property
    def facts(self) -> WorkerFacts:
        """Of the first replica: room and names are the same in all."""
        return self.workers[0].status.facts


class AdapterShelf:
    """See `qserve.gateway.adapters.control.AdapterControl`. One change at a time."""

    def __init__(
        self,
        deployments: Sequence[ModelDeployment],
        workers: Sequence[Worker],
        folder: Path,
        report: Callable[..., None],
    ) -> None:
        """`workers`: one for each of `deployments`. `folder`: for copies; those of a service that had it are taken
        over. `report(worker, event, **details)` hears what was loaded.
        """
        groups: dict[str, list[tuple[ModelDeployment, Worker]]] = {}
        for deployment, worker in zip(deployments, workers, strict=True):
            groups.setdefault(deployment.group, []).append((deployment, worker))
        self._groups = [_Group(name, both[0][0], tuple(worker for _, worker in both)) for name, both in groups.items()]
        self._copies = Copies(folder)
        self._report = report
        self._turn = asyncio.Lock()
        self._loaded = {one.name: one for one in self._copies.kept()}
        for one in self._loaded.values():
            for worker in self._named(one.group).here:
                worker.adapters.wanted[one.name] = self._copies.at(one.copy)

    async def listed(self) -> dict[str, Any]:
        """See `AdapterControl`, as the others."""
        takers = [group for group in self._groups if group.facts.max_loras]
        room = [
            {
                "model": group.facts.models[0],
                "max_loras": group.facts.max_loras,
                "max_lora_rank": group.facts.max_lora_rank,
                "loaded": [one.name for one in self._of(group)],
                "at_start": list(self._at_start(group)),
            }
            for group in takers
        ]
        return {"object": "list", "data": [one.document() for one in self._loaded.values()], "room": room}

    async def load(self, name: str, path: str, model: str | None, load_inplace: bool) -> dict[str, Any]:
        async with self._turn:
            began_s = time.monotonic()
            group = self._taking(model)
            self._check_name(name, group, load_inplace=load_inplace)
            try:
                adapter = await asyncio.to_thread(_checked, path, group)
                copy = await asyncio.to_thread(self._copies.take, adapter)
            except ModelNotFound as error:
                raise ApiError(404, str(error), "adapter_not_found", "path") from None
            except UsageError as error:
                raise ApiError(400, str(error), "invalid_adapter", "path") from None
            except (OSError, ValueError) as error:
                message = f"the adapter's files can't be read or copied: {error}"
                raise ApiError(404, message, "adapter_not_found", "path") from None
            before = self._loaded.get(name)
            await self._load_everywhere(group, name, copy, before)
            loaded = LoadedAdapter(
                name,
                group.name,
                group.facts.models[0],
                str(adapter.folder),
                copy,
                adapter.rank,
                adapter.targets,
                int(time.time()),
                1 if before is None else before.num_loads + 1,
                round(1000 * (time.monotonic() - began_s), 1),
            )
            self._loaded[name] = loaded
            await self._publish(group, None if before is None else before.copy)
            self._report("", "adapter_loaded", **loaded.document())
            return loaded.document()

    async def unload(self, name: str) -> dict[str, Any]:
        async with self._turn:
            loaded = self._loaded.pop(name, None)
            if loaded is None:
                raise self._not_loaded(name)
            group = self._named(loaded.group)
            for worker in group.here:
                del worker.adapters.wanted[name]
            await self._publish(group, loaded.copy)  # the gateway sends no more requests for it
            for worker in group.here:
                try:
                    await worker.adapters.unload(name)
                except AdapterRefused as error:
                    _log.warning("the adapter %r was not unloaded, and no request reaches it: %s", name, error)
            self._report("", "adapter_unloaded", id=name)
            return {"id": name, "object": "adapter", "deleted": True}

    async def _publish(self, group: _Group, old: str | None) -> None:
        """Names, index and copies as what is loaded now."""
        for worker in group.here:
            worker.status.facts = worker.adapters.named(worker.status.facts)
        await asyncio.to_thread(self._copies.keep, list(self._loaded.values()))
        if old is not None:
            await asyncio.to_thread(self._copies.drop, old)

    async def _load_everywhere(self, group: _Group, name: str, copy: str, before: LoadedAdapter | None) -> None:
        """Into all replicas; where one fails, all go back to `before`. Raises ApiError."""
        workers, folder = group.here, self._copies.at(copy)
        failed = await _told(workers, name, folder)
        if failed is None:
            return
        await _told(workers, name, None if before is None else self._copies.at(before.copy))
        await asyncio.to_thread(self._copies.drop, copy)
        left = "it is loaded nowhere" if before is None else "the one that was loaded before stays"
        if failed.is_lost:
            raise ApiError(502, f"{failed} when it was to load the adapter; {left}", "worker_error")
        raise ApiError(400, f"the engine refused the adapter, {failed}; {left}", "invalid_adapter", "path")

    def _taking(self, model: str | None) -> _Group:
        """The group that an adapter is for. Raises ApiError."""
        if model is not None:
            group = next((one for one in self._groups if model in one.facts.models), None)
            if group is None:
                served = ", ".join(repr(one.facts.models[0]) for one in self._groups)
                message = f"the model {model[:100]!r} is not served here; there is {served}"
                raise ApiError(404, message, "model_not_found", "model")
            if group.facts.max_loras:
                return group
            raise _no_room_at_all(group)
        takers = [one for one in self._groups if one.facts.max_loras]
        if not takers:
            raise _no_room_at_all(self._groups[0])
        if len(takers) > 1:
            names = ", ".join(repr(one.facts.models[0]) for one in takers)
            raise ApiError(400, f"several models take adapters, {names}: name one", "missing_field", "model")
        return takers[0]

    def _check_name(self, name: str, group: _Group, *, load_inplace: bool) -> None:
        for one in self._groups:
            if name in one.facts.models or name in self._at_start(one):
                what = "a model" if name in one.facts.models else "an adapter that was given at the start"
                raise ApiError(409, f"{name[:100]!r} is the name of {what}; choose another", "name_taken", "name")
        known = self._loaded.get(name)
        if known is not None and known.group != group.name:
            message = f"{name[:100]!r} is an adapter of {known.model!r}; choose another name, or unload it first"
            raise ApiError(409, message, "name_taken", "name")
        if known is not None and not load_inplace:
            message = f"the adapter {name[:100]!r} is loaded; send load_inplace: true to load it anew"
            raise ApiError(409, message, "name_taken", "name")
        taken = [*self._at_start(group), *(one.name for one in self._of(group))]
        most = group.facts.max_loras
        if known is None and len(taken) >= most:
            names = ", ".join(map(repr, taken))
            raise ApiError(
                409,
                f"the plan of {group.facts.models[0]!r} has room for {most} adapters, and {names} are loaded; unload "
                f"one, or serve with --max-loras {len(taken) + 1}",
                "no_adapter_room",
                "name",
            )

    def _not_loaded(self, name: str) -> ApiError:
        if any(name in self._at_start(group) for group in self._groups):
            message = f"the adapter {name[:100]!r} was given at the start; leave it out there"
            return ApiError(409, message, "given_at_start", "name")
        loaded = ", ".join(map(repr, self._loaded)) or "none"
        return ApiError(404, f"no adapter {name[:100]!r} was loaded; loaded are: {loaded}", "adapter_not_found", "name")

    def _named(self, name: str) -> _Group:
        return next(one for one in self._groups if one.name == name)

    def _of(self, group: _Group) -> list[LoadedAdapter]:
        return [one for one in self._loaded.values() if one.group == group.name]

    def _at_start(self, group: _Group) -> tuple[str, ...]:
        first = group.workers[0]
        return first.adapters.at_start if isinstance(first, SupervisedWorker) else ()


def _no_room_at_all(group: _Group) -> ApiError:
    if not any(one.status.start_phases_s for one in group.workers):
        message = f"{group.facts.models[0]!r} has not been started yet; its room for adapters is known once it has"
        return ApiError(503, message, "worker_not_ready", "model", retry_after_s=5)
    message = (
        f"{group.facts.models[0]!r} was planned without room for adapters; serve it with --enable-lora, and with "
        "--max-loras and --max-lora-rank for more than one of rank 16"
    )
    return ApiError(409, message, "no_adapter_room", "model")


def _checked(path: str, group: _Group) -> PeftAdapter:
    """The adapter that lies there. Raises UsageError where this model can't take it."""
    folder = Path(path)
    adapter, most = read_adapter(folder), group.facts.max_lora_rank
    if adapter.rank > most:
        raise UsageError(
            f"{folder} has pairs of rank {adapter.rank}, and the plan has room for rank {most}; serve with "
            f"--max-lora-rank {adapter.rank}"
        )
    check_base(adapter, ModelSpec.from_config(read_config(group.deployment.folder), group.facts.models[0]))
    return replace(adapter, folder=folder.resolve())


async def _told(workers: Sequence[SupervisedWorker], name: str, folder: Path | None) -> AdapterRefused | None:
    """Every worker has the adapter of this folder, or none of this name; what the first of those said that failed."""
    for worker in workers:
        if folder is None:
            worker.adapters.wanted.pop(name, None)
        else:
            worker.adapters.wanted[name] = folder
    told = (one.adapters.unload(name) if folder is None else one.adapters.load(name, folder) for one in workers)
    answers = await asyncio.gather(*told, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, AdapterRefused):
            raise answer
    return next((one for one in answers if isinstance(one, AdapterRefused)), None)
