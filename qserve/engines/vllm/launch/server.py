"""The vLLM server as a supervised worker: `worker/launch.py: Launch` over command, log, diagnosis and measurement."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import qserve.worker.guard
from qserve.client.metrics import samples_of
from qserve.core.schemes import SCHEMES
from qserve.engines.vllm.launch.command import command
from qserve.engines.vllm.launch.diagnose import failure_of
from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.log import LogFigures, figures_of, phase_of
from qserve.engines.vllm.launch.measured import measured_memory
from qserve.engines.vllm.launch.parser import FlagParser, installed_parser
from qserve.engines.vllm.launch.processes import process_figures
from qserve.engines.vllm.launch.retry import retry_with
from qserve.errors import BrokenCheckpoint, DoesNotFit, QserveError, UsageError, WorkerFailed
from qserve.planner.plan import Plan
from qserve.prompts.template import TRIALS, fault_of
from qserve.wire.engine_fields import fields_of
from qserve.worker.base import WorkerFacts
from qserve.worker.heartbeat import Progress
from qserve.worker.launch import Launch, Retry, SendRequest
from qserve.worker.process import WorkerSpec, death_of
from qserve.worker.process_tree import children_of, tree_of

__all__ = ["VllmLaunch", "progress_of"]

# The reason of a failure stands among the last lines; a start that never ends must not fill memory.
_MAX_LINES = 20_000
_SOCKET_PATH_BYTES, _RPC_NAME_BYTES = 107, len("/11c02bd5-8f89-41d5-ba12-8350e4fa9fb6")
_MEMORY = {
    FailureKind.OUT_OF_MEMORY,
    FailureKind.MEMORY_TAKEN,
    FailureKind.KV_CACHE_TOO_SMALL,
    FailureKind.TOO_MANY_SEQUENCES,
}
_NOBODYS_FAULT = {FailureKind.ADDRESS_IN_USE, FailureKind.DEVICE, FailureKind.NCCL, FailureKind.UNKNOWN}
_NOBODYS_FAULT |= {FailureKind.TOOLCHAIN, FailureKind.SLOW_LOADING}
_PROGRESS_TIMEOUT_S = 4.0
_TEMPLATE_TIMEOUT_S = 30.0
_NO_PEER_TO_PEER = {"NCCL_P2P_DISABLE": "1"}
_NO_ALL_REDUCE = "--disable-custom-all-reduce"
_CHECKPOINT = {FailureKind.CHECKPOINT, FailureKind.ARCHITECTURE}
# One observation a step, since 0.8; tokens where it is missing.
_STEPS = ("vllm:iteration_tokens_total_count", "vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_SEQUENCES = ("vllm:num_requests_running", "vllm:num_requests_waiting")


class VllmLaunch:
    """vLLM's own server on a private socket, with a guard as its parent."""

    takes_engine_args: ClassVar[bool] = True
    verifies_quant: ClassVar[bool] = False

    @classmethod
    def serving(cls, spec: WorkerSpec, file: Path, engine_args: str) -> Launch:
        """See `qserve.worker.launch.EngineLaunch`."""
        return cls(spec, engine_args)

    def __init__(self, spec: WorkerSpec, extra: str = "", parser: FlagParser | None = None) -> None:
        """Nothing is started yet.

        Args:
            spec: checkpoint, names, plan, socket and internal key.
            extra: the user's own flags of vLLM (`--engine-args`).
            parser: the installed engine's; asked for where None, which takes ten seconds the first time.

        Raises UsageError for flags that the installed engine does not know or that contradict the plan, and for random
        weights in a quantization of bitsandbytes.

        """
        if spec.load_format == "dummy" and SCHEMES[spec.plan.quant.scheme].by_bitsandbytes:
            # Source: vllm 0.26 engine/arg_utils.py, create_load_config; vllm-bnb-plugin 0.0.3, _patch_engine_args.
            raise UsageError(
                f"--load-format dummy with {spec.plan.quant.scheme}: vLLM always reads the weights of bitsandbytes' "
                "quantizations; give --quant bf16 or fp8, or --engine transformers"
            )
        self.plan: Plan = spec.plan
        self.notes: list[str] = []
        self._spec = spec
        self._extra = extra
        self._parser = parser or installed_parser()
        extra = f"--load-format dummy {extra}" if spec.load_format == "dummy" else extra
        self.started = started = command(spec, self._parser, extra)
        # -I -S: the guard needs nothing but the standard library, and starts in a blink without the rest.
        guard = (sys.executable, "-I", "-S", str(qserve.worker.guard.__file__))
        self.command: tuple[str, ...] = (*guard, *started.argv)
        self.environment: Mapping[str, str] = {**started.env, "VLLM_RPC_BASE_PATH": str(_for_rpc(spec.socket.parent))}
        # On a card it looks at what is free; two at once would take each other's memory for somebody else's.
        self.measures_free_memory = spec.plan.placement.gpu_memory_utilization is not None
        self._lines: deque[str] = deque(maxlen=_MAX_LINES)
        self._figures = LogFigures()
        self._failure: Failure | None = None

    def begin(self) -> None:
        self._lines.clear()
        self._failure = None
        with contextlib.suppress(FileNotFoundError):
            self._spec.socket.unlink()  # vLLM does not take over the socket of one that was killed

    def hear(self, line: str) -> str | None:
        self._lines.append(line)
        return phase_of(line)

    async def is_ready(self, send: SendRequest) -> bool:
        """It has answered a request: a server that listens may still have an engine that can't."""
        status, _ = await send("GET", "/health", b"")
        if status != 200:
            return False
        one_token = {"model": self._spec.models[0], "prompt": "a", "max_tokens": 1, "temperature": 0}
        status, body = await send("POST", "/v1/completions", json.dumps(one_token).encode())
        if 400 <= status < 500:  # asking again would change nothing
            answer = body.decode(errors="replace")[:500]
            raise UsageError(f"vLLM started, but refuses a request of one token (status {status}): {answer}")
        if status == 200:
            await self._check_template(send)
        return status == 200

    async def _check_template(self, send: SendRequest) -> None:
        """Raises BrokenCheckpoint where the chat template fails, by a fault of its own, on every plain conversation.

        vLLM's answer does not tell such a fault from a refusal on purpose, so the template is rendered here as well: by
        then it is known to come to an end.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TEMPLATE_TIMEOUT_S):
                for messages in TRIALS if self.started.chat_template else ():
                    body = {"model": self._spec.models[0], "messages": messages}
                    status, _ = await send("POST", "/tokenize", json.dumps(body).encode())
                    if status != 400:
                        return
                if (fault := fault_of(self.started.chat_template)) is not None:
                    raise BrokenCheckpoint(
                        f"the chat template fails on every conversation ({fault}); correct it, or give another with "
                        "--engine-args '--chat-template FILE'"
                    )

    async def is_well(self, send: SendRequest) -> bool | None:
        """vLLM answers 503 once its engine is dead."""
        status, _ = await send("GET", "/health", b"")
        return None if status == 0 else status == 200

    async def introduce(self, send: SendRequest, facts: WorkerFacts) -> WorkerFacts:
        """Which request fields this release knows, and the LoRA adapters that it serves beside the model."""
        self._figures = figures_of(self._lines)
        status, body = await send("GET", "/openapi.json", b"")
        if status != 200:
            raise WorkerFailed(f"vLLM did not say which requests it takes: GET /openapi.json answered {status}")
        request_fields = fields_of(json.loads(body))
        status, body = await send("GET", "/v1/models", b"")
        listed = [card["id"] for card in json.loads(body)["data"]] if status == 200 else []
        adapters = tuple(name for name in listed if name not in facts.models)
        return replace(self.started.with_command(facts), request_fields=request_fields, adapters=adapters)

    def failure(self, returncode: int, *, is_outside: bool = False) -> QserveError:
        """What the log says, translated; the plan's numbers beside the engine's where it is about memory."""
        self._failure = failure_of(self._lines, self.plan)
        kind, message = self._failure.kind, self._failure.message
        if kind is FailureKind.UNKNOWN and returncode < 0:
            message = f"{death_of(returncode, is_outside=is_outside)} while it started. {message}"
        if kind in _MEMORY:
            return DoesNotFit(message)
        if kind in _CHECKPOINT:
            return BrokenCheckpoint(message)
        return WorkerFailed(message) if kind in _NOBODYS_FAULT else UsageError(message)

    def retry(self) -> Retry | None:
        changed = retry_with(self.plan, self._failure) if self._failure is not None else None
        if changed is None:
            return None
        again = VllmLaunch(replace(self._spec, plan=changed), self._extra, self._parser)
        # What was added to it since stays: the cards that this worker may see, above all.
        again.environment = self.environment
        again.notes.append(changed.notes[-1])
        return Retry(again, changed.notes[-1])

    async def progress(self, send: SendRequest) -> Progress | None:
        """Its counters of steps and of sequences, which the API server keeps."""
        try:
            async with asyncio.timeout(_PROGRESS_TIMEOUT_S):
                status, metrics = await send("GET", "/metrics", b"")
        except TimeoutError:
            return None
        return progress_of(metrics.decode(errors="replace")) if status == 200 else None

    def computing(self, pid: int) -> list[int]:
        """All below the API server, which answers and does not compute; with it where it has none below it."""
        servers = children_of(pid)
        engines = [one for server in servers for one in tree_of(server)[1:]]
        return engines or servers or [pid]

    def retry_stuck(self) -> Retry | None:
        """Once, with several cards: without the two ways between cards that are known to hang on some machines."""
        if self.plan.placement.tensor_parallel_size < 2 or _NO_PEER_TO_PEER.items() <= self.environment.items():
            return None
        extra = self._extra if _NO_ALL_REDUCE in self._extra else f"{_NO_ALL_REDUCE} {self._extra}".strip()
        again = VllmLaunch(self._spec, extra, self._parser)
        again.environment = {**self.environment, **_NO_PEER_TO_PEER}
        reason = f"NCCL_P2P_DISABLE=1 and {_NO_ALL_REDUCE}, because cards without access to each other's memory hang"
        again.notes.append(f"started again with {reason}; slower between cards until that is fixed")
        return Retry(again, reason)

    async def memory(self, send: SendRequest, pid: int) -> dict[str, Any]:
        _, metrics = await send("GET", "/metrics", b"")
        processes = await asyncio.to_thread(process_figures, pid)
        return measured_memory(self._figures, metrics.decode(errors="replace"), processes, len(self.plan.devices))


def _for_rpc(private: Path) -> Path:
    """Where the engine's processes meet: a socket's path has 107 bytes (unix(7)), and theirs ends in a UUID.

    The private folder where that fits, else /tmp; left to itself vLLM takes $TMPDIR, and dies where that is long.
    """
    return private if len(os.fsencode(private)) + _RPC_NAME_BYTES <= _SOCKET_PATH_BYTES else Path("/tmp")  # noqa: S108


def progress_of(metrics: str) -> Progress | None:
    """From the text of GET /metrics; None where it has none of the counters. All of them only grow."""
    samples = samples_of(metrics, *_STEPS, *_SEQUENCES)
    steps = [one.value for one in samples if one.name in _STEPS]
    if not steps:
        return None
    return Progress(int(sum(steps)), int(sum(one.value for one in samples if one.name in _SEQUENCES)))
