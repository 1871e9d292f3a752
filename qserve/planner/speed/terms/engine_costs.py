"""What an engine adds to its kernels: per step, per layer, per request; by engine and release (configs/speed.toml)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from qserve.core.facts import load

__all__ = ["EngineCosts", "engine_costs", "era_of", "has_speed", "launch_bound_engines"]


@dataclass(frozen=True)
class EngineCosts:
    """Times in microseconds unless named otherwise.

    A decode step takes `step_us`, `layer_us` for every layer (norms, rotary angles, gaps between kernels), more for
    layers with experts or states, and `request_us` for every running request (sampling, bookkeeping, detokenizing).
    A step with a prompt in it is launched kernel by kernel: it takes at least `dispatch_layer_us` a layer; one of up to
    `graph_tokens` is replayed in pieces, and launches but `graph_share` of that; flags may say another number
    (`EnginePlanner.replayed_tokens`).
    `intake_ms` lies between the client's request and the first schedule, and between token and client: HTTP, the way
    to the engine's process and back, streaming; a prompt's tokens take `intake_ms_per_1k` more. Where there are
    `queued_ms`, requests that come together wait for these and for the tokens of those before them: one process reads
    them, renders and tokenizes (vLLM: one API server with one worker that renders, unless flags say more).
    `kept_cores` of a CPU are the server's own.
    `mixes_prefill`: prompts and decodes share a step; else a prompt's step makes decodes wait.
    `starts_alone`: an idle engine steps as soon as one request is there, and finds the others that came with it after
    that step; where a prompt takes longer than reading the others does, that is what their first tokens wait for.
    """

    era: str
    step_us: float
    layer_us: float
    request_us: float
    dispatch_layer_us: float
    intake_ms: float
    intake_ms_per_1k: float = 1.0
    queued_ms: float = 0.0
    graph_tokens: int = 0
    graph_share: float = 1.0
    moe_layer_us: float = 0.0
    state_layer_us: float = 0.0
    dispatch_moe_us: float = 0.0
    dispatch_state_us: float = 0.0
    mixes_prefill: bool = True
    max_num_batched_tokens: int = 8192
    prefill_factor: float = 1.0
    kept_cores: int = 0
    starts_alone: bool = False


def era_of(engine: str, version: str) -> str:
    """The row of configs/speed.toml for a release; releases that say nothing are the newest."""
    name = engine.lower().replace("tensorrt-llm", "trtllm")
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    release = tuple(int(part or 0) for part in found.groups()) if found else (99, 0, 0)
    eras = [row for row in load("speed")["engines"] if row["engine"] == name]
    fitting = [row for row in eras if tuple(row["since"]) <= release]
    return str((fitting or eras[:1])[-1]["era"])


def has_speed(engine: str) -> bool:
    """Whether the tables say anything of the engine."""
    return engine in (*launch_bound_engines(), *load("speed")["by_bandwidth"]) or any(
        row["engine"] == engine for row in load("speed")["engines"]
    )


def launch_bound_engines() -> tuple[str, ...]:
    """Engines whose steps on a card take the time of their launches."""
    return tuple(load("speed")["launch_bound"])


@cache
def engine_costs(engine: str, version: str = "") -> EngineCosts:
    """The costs of a release. Raises IndexError for an engine that has no row."""
    era = era_of(engine, version)
    row: dict[str, Any] = next(row for row in load("speed")["engines"] if row["era"] == era)
    return EngineCosts(**{name: row[name] for name in EngineCosts.__dataclass_fields__ if name in row})
