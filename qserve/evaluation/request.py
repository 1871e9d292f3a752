"""`EvalRequest`: tasks, numbers of items and answers, and generation settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["EvalRequest"]


@dataclass(frozen=True)
class EvalRequest:
    """What is asked of a model.

    Attributes:
        tasks: lm-eval's names, YAML files, or folders of them.
        limit: items a task; None: all.
        num_fewshot: None: what each task has.
        chat: prompts go through the chat template.
        seed: of everything that lm-eval draws, and of the requests; answer number i to an item takes seed + i.
        background: the server answers others first.
        thinking: on, off, or auto: as the chat template does by itself.
        max_gen_toks: tokens an answer may have, thought included; None: see `limits.token_limit`.
        thinking_budget: tokens after which the engine ends a thought; None: no bound of its own.
        gen_kwargs: sampling fields that go before a task's own.
        num_samples: answers to each generated item.
        include_path: folders in which tasks of one's own are looked for by name.
    """

    tasks: tuple[str, ...]
    limit: int | None = None
    num_fewshot: int | None = None
    chat: bool = False
    seed: int = 1234
    background: bool = False
    thinking: str = "auto"
    max_gen_toks: int | None = None
    thinking_budget: int | None = None
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    num_samples: int = 1
    include_path: tuple[str, ...] = ()
