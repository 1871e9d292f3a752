"""The chat template is looked at before anything starts: what is wrong with it shows at every conversation else."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from qserve.core.checkpoint import Checkpoint

__all__ = ["check_template_to_serve", "check_template_to_train", "with_checked_template"]

_FLAG = "--chat-template"
_INSTEAD = f"serve another with --engine vllm --engine-args '{_FLAG} FILE'"


def with_checked_template(checkpoint: Checkpoint, engine_args: str) -> Checkpoint:
    """The checkpoint, with a message where it has templates and none for every conversation.

    Raises BrokenCheckpoint for a template that no conversation can be rendered by.
    """
    note = check_template_to_serve(checkpoint.folder, engine_args)
    return checkpoint if note is None else replace(checkpoint, messages=(*checkpoint.messages, note))


def check_template_to_serve(folder: Path | None, engine_args: str) -> str | None:
    """The same of the model in `folder`; the message, or None. A template in `engine_args` goes before its own."""
    from qserve.hub.named_templates import check_template_file, check_templates, without_default

    given = _given(engine_args)
    if given is not None:
        if Path(given).expanduser().is_file():
            check_template_file(Path(given).expanduser())
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


def _given(engine_args: str) -> str | None:
    """The value of vLLM's own flag."""
    try:
        words = shlex.split(engine_args)
    except ValueError:  # whoever splits them to start the engine says so
        return None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _FLAG:
            return value if equals else next(iter(words[index + 1 :]), None)
    return None
