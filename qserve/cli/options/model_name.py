"""The type of --model: a text, with the known models as completions in a shell."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

__all__ = ["ModelName"]


class ModelName(click.types.StringParamType):
    """A folder, a hub id, a short name, or demo."""

    name = "model"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Known models that begin so, with or without their organisation; a folder if it looks like a path."""
        if incomplete.startswith((".", "/", "~")):
            return [CompletionItem(incomplete, type="dir")]
        from qserve.hub.bundled import known_ids, sibling_ids
        from qserve.hub.cache import cached_ids

        ids = dict.fromkeys(("demo", *known_ids(), *sibling_ids(), *cached_ids()))
        whole = [one for one in ids if one.lower().startswith(incomplete.lower())]
        short = [one.rpartition("/")[2].lower() for one in ids]
        return [CompletionItem(one) for one in whole or short if one.lower().startswith(incomplete.lower())]
