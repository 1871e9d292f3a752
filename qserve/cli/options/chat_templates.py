"""Checks of the chat template before anything starts: a fault in it would fail every conversation."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from qserve.core.checkpoint import Checkpoint

__all__ = ["check_template_to_serve", "check_template_to_train", "with_checked_template"]

_INSTEAD = "serve another with --engine vllm --engine-args '--chat-template FILE'"


def with_checked_template(checkpoint: Checkpoint, engine_args: str) -> Checkpoint:
    """The checkpoint, with a message where it has templates and none for every conversation.

    Raises BrokenCheckpoint for a template that no conversation can be rendered by.
    """
    note = check_template_to_serve(checkpoint.folder, engine_args)
    return checkpoint if note is None else replace(checkpoint, messages=(*checkpoint.messages, note))


def check_template_to_serve(folder: Path | None, engine_args: str) -> str | None:
    """The message of `with_checked_template` for the model in `folder`, or None. Raises as it does.

    A template that `engine_args` name is checked in place of the model's own.
    """
    from qserve.engine.vllm.chat_format import template_flag
    from qserve.hub.named_templates import check_given_template, check_templates, without_default

    try:
        given = template_flag(shlex.split(engine_args))
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
    from qserve.errors import BrokenCheckpoint
    from qserve.hub.named_templates import check_templates, without_default

    if folder is None:
        return
    check_templates(folder, "train another checkpoint")
    if (missing := without_default(folder)) is not None:
        raise BrokenCheckpoint(missing)
