"""Changes of vLLM's own options after which a plan may fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from qserve.planner.changes import Change, ChangeGroup, ChangeKind, change_of, halved
from qserve.planner.engines.vllm.options import VllmOptions
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
            setup, "let the planner choose the memory fraction", "nothing", _with(setup, gpu_memory_utilization=None)
        )
        yield ChangeGroup(ChangeKind.SHARE_OF_CARD, (freed,), is_ordered=False)
    if not setup.on_cpu:
        yield ChangeGroup(ChangeKind.ENGINE_SETTINGS, tuple(_settings(setup, options)), is_ordered=False)
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
        yield change_of(setup, "KV cache in fp8", "a little accuracy on long contexts", halved_cache)
    if not options.enforce_eager:
        eager = _with(setup, enforce_eager=True)
        yield change_of(setup, "no CUDA graphs", "slower decoding of few sequences", eager)
    if setup.spec.vision and not options.language_model_only:
        if options.limit_mm_per_prompt is None:
            images_only = _with(setup, limit_mm_per_prompt='{"video": 0}')
            yield change_of(setup, "no videos", "images only", images_only)
        text_only = _with(setup, language_model_only=True)
        yield change_of(setup, "no vision encoder", "no images", text_only)
