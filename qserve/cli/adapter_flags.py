"""LoRA flags among `--engine-args`: what vLLM makes room for must be in the plan, wherever it was asked for."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

from qserve.planner.request import PlanRequest

__all__ = ["uncounted_flags", "with_adapters"]

_UNCOUNTED = ("--enable-tower-connector-lora", "--specialize-active-lora", "--enable-mixed-moe-lora-format")
"""They take memory beyond that of a plan with adapters."""


def with_adapters(request: PlanRequest, engine_args: str) -> PlanRequest:
    """The request with the adapters that `engine_args` asks vLLM for; flags of qserve's own win.

    What can't be read is left to the engine's own parser, which names it. Raises UsageError for adapters that
    contradict themselves (`--max-loras` without `--enable-lora`).
    """
    if "lora" not in engine_args or request.engine == "transformers":
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
    import argparse  # most commands name no adapter

    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--fully-sharded-loras", action="store_true")
    parser.add_argument("--max-loras", type=int)
    parser.add_argument("--max-lora-rank", type=int)
    parser.add_argument("--lora-target-modules", nargs="+")
    try:
        values = vars(parser.parse_known_args(words)[0])
    except argparse.ArgumentError:
        return {}
    targets = values["lora_target_modules"]
    return {**values, "lora_target_modules": ",".join(targets) if targets else None}
