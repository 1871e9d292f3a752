"""Revisions of the hub: a branch, a tag or a commit behind a model's id (`Qwen/Qwen3-8B@v1.0`, or --revision v1.0)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qserve.errors import UsageError

__all__ = ["at_revision", "check_revision", "is_revision", "split_revision", "with_revisions"]

AT = "@"
# Names of branches and tags as git takes them, less what a path or an address reads otherwise.
# Source: git-check-ref-format(1).
_REVISION = re.compile(r"(?!.*(?:\.\.|//|/\.|\.lock(?:/|\Z)|[./]\Z))[0-9A-Za-z_][0-9A-Za-z._/+-]{0,254}")
_TAKES = "a branch, a tag or a commit: letters, digits and . _ - + /, such as main, v1.0 or 40 hex digits"
_PAIRS = (
    ("model", "revision", "--revision"),
    ("reward", "reward_revision", "--reward-revision"),
    ("embed", "embed_revision", "--embed-revision"),
)


def is_revision(text: str) -> bool:
    """Whether a branch, a tag or a commit may be called so."""
    return _REVISION.fullmatch(text) is not None


def check_revision(revision: str, flag: str = "--revision") -> str:
    """The revision. Raises UsageError for what no branch, tag or commit is called."""
    if not is_revision(revision):
        raise UsageError(f"{flag} {revision[:80]!r} is not a revision; it takes {_TAKES}")
    return revision


def at_revision(model: str, revision: str | None) -> str:
    """`model` as it is named at that revision; None: as it is."""
    return model if revision is None else f"{model}{AT}{revision}"


def split_revision(model: str, flag: str = "--revision") -> tuple[str, str | None]:
    """Name and revision of a model; None where none is named, as of a folder that has an @ in its name. `flag` is the
    one to leave out of a model that has none.

    Raises UsageError for a revision that is none, and for one of a folder.
    """
    name, at, revision = model.partition(AT)
    if not at or not name or _exists(model):
        return model, None
    if name == "demo" or name.startswith((".", "/", "~")) or _exists(name):
        _refuse(name, revision, flag)
    return name, check_revision(revision, f"{name}{AT}")


def with_revisions(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a command by name, with those of its models (`revision`, …) put behind the models that they are of.

    Raises UsageError for a revision of no model, for two revisions of one, and for what is no revision.
    """
    changed = {name: value for name, value in values.items() if name not in {pair[1] for pair in _PAIRS}}
    for role, option, flag in _PAIRS:
        revision, model = values.get(option), values.get(role)
        if revision is None:
            continue
        if model is None:
            raise UsageError(f"{flag} {revision}: no --{role} is named that it could be of; name one, or leave it out")
        name, other = split_revision(str(model))
        if other not in (None, revision):
            raise UsageError(f"{flag} {revision} and --{role} {model} name two revisions; leave one of them out")
        changed[role] = at_revision(name, check_revision(str(revision), flag))
        split_revision(changed[role], flag)  # of a folder it is refused
    return changed


def _refuse(name: str, revision: str, flag: str) -> None:
    """Raises UsageError: only the hub has revisions."""
    what = "comes with qserve" if name == "demo" else "is a path on this machine"
    raise UsageError(
        f"{flag} {revision[:80]}: {name} {what} and has no revisions; leave it out, or name a model of the "
        "hub by its id"
    )


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, ~nobody, a null byte
        return False
