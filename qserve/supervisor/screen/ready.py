"""The summary of a service that is ready: what a user needs first, then the models, then the next steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qserve.engines.transformers.kernels.refusals import Refusal
from qserve.planner.layout_rows import layout_rows
from qserve.planner.plan import Plan
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.screen.console import COMMAND, Row
from qserve.supervisor.screen.details import TERMS, detail_rows, process_rows
from qserve.supervisor.screen.worker import ReadyWorker
from qserve.units import format_bytes, format_count, format_parameters, format_seconds
from qserve.worker.base import WorkerFacts

__all__ = ["check_rows", "ready_rows"]

# A KV pool that is off its plan by less is not worth a figure.
_SAME = 0.01


def ready_rows(
    url: str,
    workers: Sequence[ReadyWorker],
    processes: Sequence[Mapping[str, Any]] = (),
    on_demand: Sequence[WorkerFacts] = (),
    *,
    has_key: bool,
    logs: Path,
    has_ui: bool = False,
    is_verbose: bool = False,
) -> list[Row]:
    """What `Screen.ready` shows. `processes`: those without a model, as `HostMemory.documents` has them. `on_demand`:
    models that are not in memory yet.
    """
    rows = [("API", f"{url}/v1  ({'your key is needed' if has_key else 'no key; only for this machine'})")]
    if has_ui:
        rows.append(("UI", f"{url}/  (open it in a browser)"))
    for group in dict.fromkeys(worker.group or worker.role for worker in workers):
        replicas = [worker for worker in workers if (worker.group or worker.role) == group]
        rows += _model_rows(replicas)
        rows += [("Warn", refused.warning) for refused in _refused_kernels(replicas)]
        if is_verbose:
            rows += [row for worker in replicas for row in detail_rows(worker)]
    if on_demand:
        rows.append(("Waiting", f"{', '.join(one.models[0] for one in on_demand)} · loaded on demand (qserve ps)"))
    if is_verbose:
        rows += process_rows(processes)
    first = (workers[0].role, workers[0].names[0]) if workers else (on_demand[0].role, on_demand[0].models[0])
    return [
        *rows,
        ("Logs", str(logs)),
        ("More", f"qserve report --url {url}"),
        (COMMAND, _example(url, *first, has_key)),
        ("Stop", "Ctrl-C; running requests finish first"),
    ]


def check_rows(sanity: Sanity) -> list[Row]:
    """The result of a self-test that comes after the summary."""
    return [("Warn" if sanity.is_noise else "Check", sanity.summary)]


def _refused_kernels(replicas: Sequence[ReadyWorker]) -> list[Refusal]:
    """Each kernel once, whichever replicas' cards refused it."""
    found = (one for worker in replicas for one in (worker.memory.get("kernels") or {}).get("refused", ()))
    return list({one["kernel"]: Refusal.from_json(one) for one in found}.values())


def _model_rows(replicas: Sequence[ReadyWorker]) -> list[Row]:
    """What the replicas have in common, and a line for each where there are several."""
    first, is_alone = replicas[0], len(replicas) == 1
    title = "Model" if first.role == "chat" else first.role.capitalize()
    if not first.has_model:
        rows = [(title, f"{', '.join(first.names)} · rules and judges, without a model")]
        rows += [("", _memory(first))] if _memory(first) else []
    else:
        rows = [(title, _model(first, has_devices=is_alone)), ("", _limits(first, has_pool=is_alone))]
        ends = [_memory(first)] if is_alone else []
        ends += [first.sanity.summary] if first.sanity is not None and not first.sanity.is_noise else []
        rows += [("", " · ".join(end for end in ends if end))] if any(ends) else []
        rows += [(worker.name, _replica(worker)) for worker in replicas if not is_alone]
        rows += [("", row) for row in _margin(first.plan)]
        rows += [("" if number else "Layers", row) for number, row in enumerate(layout_rows(first.plan))]
        rows += check_rows(first.sanity) if first.sanity is not None and first.sanity.is_noise else []
    return [*rows, *(("Note", note) for note in first.notes)]


def _model(worker: ReadyWorker, *, has_devices: bool) -> str:
    plan = worker.plan
    parameters = f"{format_parameters(plan.model.parameters)} parameters"
    devices = f" on {_devices(plan)}" if has_devices else ""
    return f"{', '.join(worker.names)} · {parameters} · {plan.quant.scheme} · {plan.engine}{devices}"


def _limits(worker: ReadyWorker, *, has_pool: bool) -> str:
    limits = worker.plan.workload
    text = f"up to {limits.max_model_len:,} tokens a request, {limits.max_num_seqs} requests at once"
    pool = _pool(worker) if has_pool else ""
    return f"{text} · {pool}" if pool else text


def _pool(worker: ReadyWorker) -> str:
    tokens, planned = worker.memory.get("kv_cache_tokens"), worker.plan.kv_cache_tokens
    if not tokens:
        return ""
    is_same = abs(tokens - planned) <= _SAME * planned
    return f"KV cache of {format_count(tokens)} tokens" + ("" if is_same else f" (planned {format_count(planned)})")


def _memory(worker: ReadyWorker) -> str:
    """Measured and planned memory: the sum of the terms that the engine measures, else all that the process holds."""
    known = [name for name in TERMS if worker.memory.get(f"{name}_bytes")]
    if not known:
        held = worker.memory.get("resident_bytes")
        return f"memory {format_bytes(held)}" if held else ""
    measured = sum(worker.memory[f"{name}_bytes"] for name in known)
    planned = sum(getattr(device, f"{name}_bytes") for device in worker.plan.devices for name in known)
    return f"memory {format_bytes(measured)} (planned {format_bytes(planned)})"


def _replica(worker: ReadyWorker) -> str:
    parts = [_devices(worker.plan), _memory(worker), _pool(worker)]
    return " · ".join(
        [part for part in parts if part] + [f"started in {format_seconds(sum(worker.phases_s.values()))}"]
    )


def _margin(plan: Plan) -> list[str]:
    """Memory kept as a margin because of uncertain terms; at most one row."""
    kept = [term.num_bytes for device in plan.devices for term in device.terms if term.name == "held back"]
    return [f"{format_bytes(max(kept))} of each card kept as a safety margin"] if any(kept) else []


def _devices(plan: Plan) -> str:
    """Equal devices counted: `2 × NVIDIA GeForce RTX 4090`."""
    names = Counter(device.name for device in plan.devices)
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in names.items())


def _example(url: str, role: str, name: str, has_key: bool) -> str:
    """A command that can be copied, of lines that fit a terminal."""
    question = "What is 12+30?"
    model = f'{{"model": {json.dumps(name, ensure_ascii=False)},'
    if role == "reward":
        path, fields = "/v1/reward", f'"prompt": "{question}", "responses": ["42", "43"]}}'
    elif role == "embed":
        path, fields = "/v1/embeddings", f'"input": "{question}"}}'
    else:
        path, fields = "/v1/chat/completions", f'"messages": [{{"role": "user", "content": "{question}"}}]}}'
    return " \\\n".join(
        [
            f"curl {url}{path}",
            "  -H 'content-type: application/json'",
            *(['  -H "authorization: Bearer $QSERVE_API_KEY"'] if has_key else []),
            f"  -d '{model}\n       {fields}'",
        ]
    )
