"""The chat model of a service: its checkpoint, checked before anything is planned."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

from qserve.core.checkpoint import SENTENCE_TRANSFORMERS, Checkpoint
from qserve.errors import BrokenCheckpoint, QserveError, UsageError
from qserve.hub import resolve
from qserve.planner.engine import engines
from qserve.reward.settings import RewardSettings
from qserve.service.machine import Machine
from qserve.service.request import ServiceRequest

__all__ = ["check_template_to_serve", "check_template_to_train", "checked_chat"]

# By its name: Qwen3-Embedding, Qwen3-VL-Embedding, gte-Qwen2.
_EMBEDS = re.compile(r"(^|[-_.])(embed(ding)?s?|gte)([-_.]|$)", re.IGNORECASE)
# In flags of vLLM: it is served for vectors there.
_POOLS = "--runner"
_INSTEAD = "serve another with --engine vllm --engine-args '--chat-template FILE'"


def checked_chat(request: ServiceRequest, machine: Machine) -> Checkpoint:
    """The checkpoint that --model names, with a message where it has templates and none for every conversation, and
    where it was trained for vectors.

    Raises BrokenCheckpoint for a template that no conversation can be rendered by, UsageError for one without a
    language-model head, and on a machine that serves for the folder of an embedding model, unless vLLM is to pool it.
    """
    checkpoint = resolve(str(request.model))
    _refuse_classifier(request, checkpoint, machine)
    if machine.serves and _POOLS not in request.engine_args and _has_modules(checkpoint):
        raise UsageError(f"{_writes_none(checkpoint)}: qserve up --embed {request.model}")
    notes = _of_vectors(checkpoint), check_template_to_serve(checkpoint.folder, request.engine_args)
    return replace(checkpoint, messages=(*checkpoint.messages, *filter(None, notes)))


def _of_vectors(checkpoint: Checkpoint) -> str | None:
    """A note on an embedding model: its architecture is a language model's, and it loads as one."""
    if not _has_modules(checkpoint) and not _EMBEDS.search(checkpoint.id.rpartition("/")[2]):
        return None
    return f"{_writes_none(checkpoint)}: --embed {checkpoint.id} instead of --model"


def _has_modules(checkpoint: Checkpoint) -> bool:
    return checkpoint.folder is not None and (checkpoint.folder / SENTENCE_TRANSFORMERS).is_file()


def _writes_none(checkpoint: Checkpoint) -> str:
    return f"{checkpoint.id} is an embedding model, trained for vectors and not for text; serve it at /v1/embeddings"


def _refuse_classifier(request: ServiceRequest, checkpoint: Checkpoint, machine: Machine) -> None:
    """Raises UsageError for a checkpoint without a language-model head; --reward is named where it was tried."""
    if checkpoint.spec.head.kind == "lm":
        return
    from qserve.reward.find import find_reward

    settings = request.reward.settings if request.reward is not None else RewardSettings()
    what = f"{checkpoint.id} is a {checkpoint.spec.architecture}, which has no language-model head and writes no text"
    if not machine.serves:  # its files need not be here
        raise UsageError(f"{what}; plan it as a reward model: qserve plan --reward {request.model}")
    try:
        find_reward(str(request.model), settings)
    except QserveError as error:
        raise UsageError(f"{what}; as a reward model it can't be served either: {error}") from None
    raise UsageError(f"{what}; serve it as a reward model: qserve up --reward {request.model}")


def check_template_to_serve(folder: Path | None, engine_args: str) -> str | None:
    """The message of `checked_chat` for the model in `folder`, or None. Raises as it does.

    A template that `engine_args` name is checked in place of the model's own.
    """
    from qserve.hub.named_templates import check_given_template, check_templates, without_default

    try:
        words = shlex.split(engine_args)
        named = (one.planner.chat_template_in(words) for one in engines())
        given = next((text for text in named if text is not None), None)  # an empty one counts, too
    except ValueError:  # the start of the engine reports it
        given = None
    if given is not None:
        check_given_template(given)
        return None
    if folder is None:
        return None
    check_templates(folder, _INSTEAD)
    missing = without_default(folder)
    return None if missing is None else f"{missing}, or {_INSTEAD}; until then there are no chats, only completions"


def check_template_to_train(folder: Path | None) -> None:
    """Raises BrokenCheckpoint for a template that no row can be rendered by, or none for every conversation."""
    from qserve.hub.named_templates import check_templates, without_default

    if folder is None:
        return
    check_templates(folder, "train another checkpoint")
    if (missing := without_default(folder)) is not None:
        raise BrokenCheckpoint(missing)
