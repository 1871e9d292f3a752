"""Flags of vLLM among `--engine-args` that memory depends on: they belong into the plan, wherever they were given."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from qserve.planner.request import PlanRequest

__all__ = ["uncounted_flags", "with_counted_flags"]

_UNCOUNTED = ("--enable-tower-connector-lora", "--specialize-active-lora", "--enable-mixed-moe-lora-format")
"""They take memory beyond that of a plan with adapters."""


def with_counted_flags(request: PlanRequest, engine_args: str) -> PlanRequest:
    """The request with the adapters and the images that `engine_args` asks vLLM for; flags of qserve's own win.

    What can't be read is left to the engine's own parser, which names it. Raises UsageError for what contradicts
    itself (`--max-loras` without `--enable-lora`).
    """
    if not any(word in engine_args for word in ("lora", "mm")) or request.engine == "transformers":
        return request
    found = {name: value for name, value in _found(_words(engine_args)).items() if value not in (None, False)}
    unset = {name: value for name, value in found.items() if getattr(request, name) in (None, False)}
    return replace(request, **unset)


def uncounted_flags(engine_args: str) -> tuple[str, ...]:
    """LoRA flags that take memory which no plan counts."""
    words = _words(engine_args)
    return tuple(flag for flag in _UNCOUNTED if flag in words)


def _words(engine_args: str) -> list[str]:
    """Words with flags in one spelling: vLLM takes _ for - and = for a blank."""
    try:
        words = shlex.split(engine_args)
    except ValueError:
        return []
    heads = (word.partition("=") for word in words)
    return [
        (head.replace("_", "-") if head.startswith("--") else head) + equals + value for head, equals, value in heads
    ]


def _found(words: list[str]) -> dict[str, Any]:
    import argparse  # most commands name none of these

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--enable-lora", "--fully-sharded-loras", "--skip-mm-profiling"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--max-loras", "--max-lora-rank"):
        parser.add_argument(flag, type=int)
    for flag in ("--limit-mm-per-prompt", "--mm-processor-kwargs"):
        parser.add_argument(flag)
    parser.add_argument("--lora-target-modules", nargs="+")
    try:
        values = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return {}
    targets = values["lora_target_modules"]
    return {**values, "lora_target_modules": ",".join(targets) if targets else None}
