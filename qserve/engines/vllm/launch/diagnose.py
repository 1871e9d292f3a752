"""Diagnoses a failed start of vLLM from its log, with a message that says what to change. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.reasons import RULES
from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = ["clean", "failure_of"]

# "(EngineCore pid=5096) ERROR 11-21 08:18:50 [core.py:712] " and, from uvicorn, "ERROR:    ".
_PREFIX = re.compile(
    r"^(\([\w-]+ (?:rank=\d+ )?pid=\d+\) ?)?((INFO|WARNING|ERROR|CRITICAL|DEBUG) \d\d-\d\d [\d:]+ \[[\w./]+:\d+\] ?)?"
)
# Said just before the cache is allocated: what runs out of memory later, runs out with the cache in it.
_CACHE_SIZED = re.compile(r"KV cache size: [\d,]+ tokens")
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit))(?:: (.*))?$")
_NO_REASON = (
    "Engine core initialization failed",
    "Failed core proc",
    "WorkerProc initialization failed",
    "Engine core proc",
)


def clean(line: str) -> str:
    """A line without the engine's prefix of process, level, time and file."""
    return _PREFIX.sub("", line.rstrip(), count=1)


def failure_of(lines: Iterable[str], plan: Plan | None = None) -> Failure:
    """The reason of a failed start. With `plan`, memory failures hold its numbers beside the engine's."""
    text = "\n".join(clean(line) for line in lines)
    for rule in RULES:
        found = rule.pattern.search(text)
        if found is not None:
            failure = rule.failure(found)
            failure = replace(
                failure,
                said=_whole_line(text, found.start()),
                during_cache=failure.during_cache or _CACHE_SIZED.search(text, 0, found.start()) is not None,
            )
            return failure if plan is None else _beside(failure, plan)
    return _last_exception(text)


def _whole_line(text: str, start: int) -> str:
    end = text.find("\n", start)
    return text[text.rfind("\n", 0, start) + 1 : end if end >= 0 else None].strip()


def _last_exception(text: str) -> Failure:
    """What nobody taught us: the engine's own last exception, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    exceptions = [line for line in lines if _EXCEPTION.match(line) and not any(vague in line for vague in _NO_REASON)]
    last = (exceptions or lines or ["nothing"])[-1]
    return Failure(FailureKind.UNKNOWN, f"vLLM did not start: {last}", last)


def _beside(failure: Failure, plan: Plan) -> Failure:
    """The plan's numbers beside the engine's, where it is about memory."""
    if failure.needed_bytes is None and failure.available_bytes is None:
        return failure
    device, limits = plan.devices[0], plan.workload
    return replace(
        failure,
        message=f"{failure.message} Planned on {device.name}: weights {format_bytes(device.weights_bytes)}, KV cache "
        f"{format_bytes(device.kv_cache_bytes)}, activations {format_bytes(device.activations_bytes)}, "
        f"{limits.max_model_len} tokens a request, {limits.max_num_seqs} requests at once.",
    )
