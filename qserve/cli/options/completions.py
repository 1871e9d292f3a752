"""Completions in a shell that click cannot know: models and cards."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["ModelName", "complete_gpu"]


class ModelName(click.types.StringParamType):
    """A folder, a hub id, a short name, or demo."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Known models that begin so, with or without their organisation, and subcommands; of a path folders."""
        if incomplete.startswith((".", "/", "~")):
            return [CompletionItem(incomplete, type="dir")]
        from qserve.hub.bundled import known_ids, sibling_ids
        from qserve.hub.cache import cached_ids

        begun = incomplete.lower()
        group = ctx.command if isinstance(ctx.command, click.Group) and isinstance(param, click.Argument) else None
        commands = [] if group is None else [one for one in group.list_commands(ctx) if one.startswith(begun)]
        ids = dict.fromkeys(("demo", *known_ids(), *sibling_ids(), *cached_ids()))
        whole = [one for one in ids if one.lower().startswith(begun)]
        short = [one.rpartition("/")[2].lower() for one in ids]
        return [CompletionItem(one) for one in (*commands, *(whole or short)) if one.lower().startswith(begun)]


def complete_gpu(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of cards that begin so."""
    from qserve.core.hardware import known_gpus

    return [name for name in known_gpus() if name.startswith(incomplete.lower())]
