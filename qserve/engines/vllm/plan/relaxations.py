"""Changes of vLLM's own options after which a plan may fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qserve.engines.vllm.plan.options import VllmOptions
from qserve.planner.changes import Change, ChangeGroup, ChangeKind, change_of, halved
from qserve.planner.request import PlanRequest
from qserve.planner.setup import Setup

__all__ = ["relaxations"]


def relaxations(setup: Setup) -> Iterator[ChangeGroup]:
    """A free share of the card, cheaper settings, fewer adapters; nothing for a setup of another engine."""
    if setup.engine != VllmOptions.engine:
        return
    options = setup.request.of(VllmOptions)
    if options.gpu_memory_utilization:
        freed = change_of(
            setup,
            "let the planner choose the memory fraction",
            "costs nothing",
            _with(setup, gpu_memory_utilization=None),
        )
        yield ChangeGroup(ChangeKind.OWN_SETTING, (freed,))
    if not setup.on_cpu:
        settings = tuple(_settings(setup, options))
        yield ChangeGroup(ChangeKind.ENGINE_SETTINGS, settings, most=len(settings))
    yield halved(
        setup,
        ChangeKind.ADAPTERS,
        options.max_loras,
        lambda number: _with(setup, max_loras=number),
        lambda number: f"{number} {'adapters' if number > 1 else 'adapter'} at once",
        "requests for other adapters wait",
    )


def _with(setup: Setup, **values: Any) -> PlanRequest:
    return setup.request.with_options(replace(setup.request.of(VllmOptions), **values))


def _settings(setup: Setup, options: VllmOptions) -> Iterator[Change]:
    if options.kv_cache_dtype == "auto":
        halved_cache = _with(setup, kv_cache_dtype="fp8")
        yield change_of(setup, "KV cache in fp8", "slightly less accurate on long contexts", halved_cache)
    if not options.enforce_eager:
        eager = _with(setup, enforce_eager=True)
        yield change_of(setup, "no CUDA graphs", "slower while few requests run", eager)
    if setup.spec.vision and not options.language_model_only:
        if options.limit_mm_per_prompt is None:
            images_only = _with(setup, limit_mm_per_prompt='{"video": 0}')
            yield change_of(setup, "no videos", "images only, no videos", images_only)
        text_only = _with(setup, language_model_only=True)
        yield change_of(setup, "no vision encoder", "text only", text_only)
