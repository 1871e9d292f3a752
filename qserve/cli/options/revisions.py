"""The options of revisions (--revision, …) behind the models that they are of, of the command line and of a file."""

from __future__ import annotations

import click
from click.core import ParameterSource

from qserve.errors import ModelNotFound
from qserve.hub.revisions import split_revision, with_revisions

__all__ = ["take_revisions"]

_LINE, _FILE = ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP


def take_revisions(ctx: click.Context) -> None:
    """Put them there, where commands and their messages have them.

    One of a file is of the file's model, however the command line names that again; of any model where the file names
    none. What the command line says of the revision goes before what the file says. Raises UsageError as
    `with_revisions` does.
    """
    for role, option in (("model", "revision"), ("reward", "reward_revision"), ("embed", "embed_revision")):
        revision = ctx.params.pop(option, None)
        if ctx.resilient_parsing:
            continue
        model, sources = ctx.params.get(role), (ctx.get_parameter_source(role), ctx.get_parameter_source(option))
        if sources[0] is _LINE and sources[1] is not _LINE:
            revision = _of_file(ctx, str(model), role, option)
        elif sources == (_FILE, _LINE):
            model = split_revision(str(model))[0]
        if revision is None:
            continue
        if sources[0] not in (_LINE, _FILE):  # of the demo that nobody named it is no revision either
            model = None
        ctx.params[role] = with_revisions({role: model, option: revision})[role]
        if _LINE in sources:
            ctx.set_parameter_source(role, _LINE)


def _of_file(ctx: click.Context, model: str, role: str, option: str) -> str | None:
    """The file's revision of a model that the command line names; None without one, and for another model."""
    of_file: str | None = ctx.lookup_default(role)
    revision: str | None = ctx.lookup_default(option)
    name, own = split_revision(model)
    if own is not None:
        return None
    if of_file is None:
        return revision
    other, behind = split_revision(of_file)
    return (revision or behind) if _are_one(name, other) else None


def _are_one(name: str, other: str) -> bool:
    """Whether both name one model: qwen3-8b and Qwen/Qwen3-8B do."""
    if name == other:
        return True
    from qserve.hub.resolve import id_of  # the tables, which few commands need so early

    try:
        return id_of(name) == id_of(other)
    except ModelNotFound:  # it can be several; what reads it says so
        return False
