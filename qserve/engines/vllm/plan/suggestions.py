"""Changes of vLLM's own options after which a plan may fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.rank_shard import ram_table_bytes
from qserve.planner.candidate import Candidate
from qserve.planner.changes import Change, ChangeGroup, ChangeKind, change_of, halved
from qserve.planner.request import PlanRequest

__all__ = ["suggestions"]


def suggestions(candidate: Candidate) -> Iterator[ChangeGroup]:
    """A free share of the card, cheaper settings, fewer adapters; nothing for a candidate of another engine."""
    if candidate.engine != VllmOptions.engine:
        return
    options = candidate.request.of(VllmOptions)
    if options.gpu_memory_utilization:
        freed = change_of(
            candidate,
            "let the planner choose the memory fraction",
            "costs nothing",
            _with(candidate, gpu_memory_utilization=None),
        )
        yield ChangeGroup(ChangeKind.OWN_SETTING, (freed,))
    if not candidate.on_cpu:
        settings = tuple(_settings(candidate, options))
        yield ChangeGroup(ChangeKind.ENGINE_SETTINGS, settings, most=len(settings))
    yield halved(
        candidate,
        ChangeKind.ADAPTERS,
        options.max_loras,
        lambda number: _with(candidate, max_loras=number),
        lambda number: f"{number} {'adapters' if number > 1 else 'adapter'} at once",
        "requests for other adapters wait",
    )


def _with(candidate: Candidate, **values: Any) -> PlanRequest:
    return candidate.request.with_options(replace(candidate.request.of(VllmOptions), **values))


def _settings(candidate: Candidate, options: VllmOptions) -> Iterator[Change]:
    if options.kv_cache_dtype == "auto":
        halved_cache = _with(candidate, kv_cache_dtype="fp8")
        yield change_of(candidate, "KV cache in fp8", "slightly less accurate on long contexts", halved_cache)
    if ram_table_bytes(candidate):
        on_cards = _with(candidate, engram_config='{"cpu_offload": false}')
        yield change_of(candidate, "tables of n-grams on the cards", "less room for the cache", on_cards)
    if not options.enforce_eager:
        eager = _with(candidate, enforce_eager=True)
        yield change_of(candidate, "no CUDA graphs", "slower while few requests run", eager)
    spec = candidate.spec
    if (spec.vision or spec.audio) and not options.language_model_only:
        if spec.vision and options.limit_mm_per_prompt is None:
            images_only = _with(candidate, limit_mm_per_prompt='{"video": 0}')
            yield change_of(candidate, "no videos", "images only, no videos", images_only)
        text_only = _with(candidate, language_model_only=True)
        yield change_of(candidate, f"no {'vision' if spec.vision else 'audio'} encoder", "text only", text_only)
