"""The flags of `qserve eval` as an `EvalRequest`: tasks, limits, and how answers are generated."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qserve.errors import UsageError

if TYPE_CHECKING:
    from qserve.evaluation.request import EvalRequest
    from qserve.evaluation.tasks import Tasks

__all__ = ["EvalFlags", "check_samples", "check_thinking", "eval_request", "gen_kwargs_of"]

_FOR_CHAT = ("thinking", "thinking_budget")
# Of a request, and no sampling: one answer to one prompt is scored.
_REFUSED = ("n", "best_of", "stream", "echo", "prompt", "messages", "model")


@dataclass(frozen=True)
class EvalFlags:
    """The flags of an evaluation, by the names of its options."""

    url: str | None
    api_key: str = field(repr=False)
    served_model_name: str | None
    model: str | None
    quant: str | None
    cpu_activations: str
    up_args: str
    tasks: str | None
    include_path: tuple[str, ...]
    suite: str | None
    limit: int | None
    num_fewshot: int | None
    chat: bool
    thinking: str | None
    max_gen_toks: int | None
    thinking_budget: int | None
    gen_kwargs: str | None
    num_samples: int
    max_truncated: float
    seed: int
    tokenizer: str | None
    max_length: int | None
    background: bool | None
    preflight: bool
    resume: bool
    out: Path | None
    state_dir: Path | None
    as_json: bool


def eval_request(flags: EvalFlags) -> EvalRequest:
    """The request of a suite, of tasks, or of both; flags override the suite."""
    from qserve.evaluation import suites
    from qserve.evaluation.request import EvalRequest

    tasks = tuple(word.strip() for word in (flags.tasks or "").split(",") if word.strip())
    suite = suites.load(flags.suite) if flags.suite else None
    if not tasks and suite is None:
        raise UsageError(
            f"--tasks or --suite says what to ask: lm-eval's task names, YAML files of your own, or one of "
            f"{', '.join(suites.suites())} (offline needs no network)"
        )
    chat = flags.chat or bool(suite and suite.chat)
    for name in _FOR_CHAT:
        if getattr(flags, name) is not None and not chat:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} needs --chat: only a chat template can turn thinking on or off")
    return EvalRequest(
        tasks=tuple(dict.fromkeys((*tasks, *(suite.tasks if suite else ())))),
        limit=flags.limit or (suite.limit if suite else None),
        num_fewshot=suite.num_fewshot if suite and flags.num_fewshot is None else flags.num_fewshot,
        chat=chat,
        seed=flags.seed,
        background=flags.model is None if flags.background is None else flags.background,
        thinking=flags.thinking or "auto",
        max_gen_toks=flags.max_gen_toks,
        thinking_budget=flags.thinking_budget,
        gen_kwargs=gen_kwargs_of(flags.gen_kwargs or ""),
        num_samples=flags.num_samples,
        include_path=flags.include_path,
    )


def check_samples(request: EvalRequest, tasks: Tasks) -> None:
    """Raises UsageError for a group of which --num-samples could repeat a part only."""
    mixed = [spec.name for spec in tasks.specs if "generate_until" in spec.kinds and not spec.only_generates]
    if request.num_samples > 1 and mixed:
        raise UsageError(
            f"--num-samples {request.num_samples}: {mixed[0]} has generated and scored tasks, and only generated ones "
            "can be sampled several times; name those with --tasks"
        )


def check_thinking(model: str, request: EvalRequest, tasks: Tasks) -> None:
    """Raises UsageError for thinking that a model's chat template has no place for, where the model is on this machine.

    Before its server starts; `thinking_mode` says the same of any server.
    """
    from qserve.evaluation.answers.thinking_mode import thinking_mode
    from qserve.evaluation.server import ServedModel
    from qserve.hub.resolve import resolve

    folder = resolve(model).folder
    if folder is not None and request.chat:
        thinking_mode(ServedModel("", "", model, 0, str(folder), 1, {}), request, tasks)


def gen_kwargs_of(text: str) -> dict[str, Any]:
    """`temperature=0.6,top_p=0.95`, or a JSON object. Raises UsageError for anything else."""
    fields = _fields(text.strip())
    for name in _REFUSED:
        if name in fields:
            raise UsageError(
                f"--gen-kwargs {name}: it takes sampling parameters only, such as temperature and top_p; --num-samples "
                "asks for several answers to each item"
            )
    return fields


def _fields(text: str) -> dict[str, Any]:
    if not text:
        return {}
    if text.startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise UsageError(f"--gen-kwargs {text} is not a JSON object: {error}") from None
    fields = {}
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not (name.isidentifier() and equals and value):
            raise UsageError(f"--gen-kwargs {part.strip()!r}: write name=value, as in temperature=0.6,top_p=0.95")
        fields[name] = _value(value)
    return fields


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
