"""From what the user wrote behind --model to a `Checkpoint`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.errors import ModelNotFound
from qserve.hub import cache
from qserve.hub.bundled import alias_of, aliases, bundled_config, known_ids, packed_config, sibling_ids
from qserve.hub.folder import ReadCheckpoint, read_folder, read_snapshot
from qserve.hub.guessed import FOR_EXACT, guessed, layouts_by_name
from qserve.hub.named import base_of, foreign_format, on_apple, packed_word
from qserve.hub.names import meant_id, near_ids
from qserve.hub.revisions import at_revision, split_revision

__all__ = ["id_of", "is_offline", "may_ask_hub", "resolve", "told_revisions"]

_WAYS = "a model is named by its folder, its hub id, a short name like qwen3-8b, or demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(model: str) -> Checkpoint:
    """The checkpoint that `model` names: a folder, `demo`, an alias, a hub id, or a short name that one model has; of
    the hub at a revision where one stands behind it (`Qwen/Qwen3-8B@main`).

    A hub id is looked up in the local Hugging Face cache, then among the bundled dimensions of configs/models.toml,
    then on the hub (config and header bytes only; not when HF_HUB_OFFLINE is set), then among the packings that
    configs/checkpoints.toml knows; a quantized checkpoint of a known model is at last a guess by its name. At a
    revision only the cache and the hub are asked, since tables have none.
    Raises ModelNotFound, BrokenCheckpoint or UnknownArchitecture, and UsageError for a revision of a folder or one that
    is malformed.
    """
    model, revision = split_revision(model)
    model_id, messages = model, tuple[str, ...]()
    path = _folder(model)
    if path is not None:
        read = read_folder(path, model)
    else:
        model_id, messages = _named(model)
        read = _of_hub(model_id) if revision is None else _at(model_id, revision)
    spec = ModelSpec.from_config(read.config, model_id)
    notes = (*messages, *read.notes)
    asked = "" if revision is None else at_revision(model_id, revision)
    found = Checkpoint(
        model_id,
        read.folder,
        read.config,
        spec,
        read.tensors,
        notes,
        read.revision,
        asked,
        packed_word=read.packed_word,
    )
    return guessed(found, read.by_name) if read.by_name else found


def id_of(model: str) -> str:
    """The hub's id that a name means; a folder, and a name that nobody knows, as it is.

    Raises ModelNotFound for a name that can be several, and for a path to no folder.
    """
    return model if _folder(model) is not None else _named(model)[0]


def _named(model: str) -> tuple[str, tuple[str, ...]]:
    """The id, and a message where the user wrote another name."""
    meant = model if model in aliases() else meant_id(model, _known())
    if meant is None:
        return model, ()
    model_id, note = alias_of(meant) or (meant, f"{model} is taken for {meant}")
    return model_id, (note,)


def _known() -> tuple[str, ...]:
    """Hub ids that can be named short: bundled models, their quantized siblings, aliases, what the cache holds."""
    return tuple(dict.fromkeys((*known_ids(), *sibling_ids(), *aliases(), *cache.cached_ids())))


def _folder(model: str) -> Path | None:
    """The folder that `model` or `demo` names; None for another name. Raises ModelNotFound for a path to no folder."""
    if model == "demo":
        from qserve.demo import chat_model_path  # pulls in the demo package only for the demo

        return Path(chat_model_path())
    try:
        path = Path(model).expanduser()
        is_folder = path.is_dir()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, ~nobody, a null byte
        is_folder = False
    if is_folder:
        return path
    if model.startswith(("/", "./", "../", "~")) or (_HUB_ID.fullmatch(model) is None and "/" in model):
        raise ModelNotFound(f"there is no folder {model!r}; {_WAYS}")
    return None


def _of_hub(model_id: str) -> ReadCheckpoint:
    """A hub id from the cache, the tables or the hub, else what its name tells. Raises ModelNotFound."""
    read = read_snapshot(model_id)
    if read is not None:
        return read
    # A model that we know by heart is not worth a network round trip: the plan answers in under half a second.
    if bundled := bundled_config(model_id):
        note = f"{model_id} is not on this machine: planned from its bundled dimensions, which pin no revision"
        return ReadCheckpoint(None, bundled, notes=(note,))
    if may_ask_hub(model_id):
        from qserve.hub import remote  # urllib is a tenth of what `qserve plan` imports, and a folder needs none of it

        fetched = remote.fetch(model_id)
        if fetched is not None:
            return fetched
    if packed := packed_config(model_id):
        note = f"{model_id} can't be read here: planned as configs/checkpoints.toml has it packed"
        return ReadCheckpoint(None, packed, notes=(note,))
    if foreign := foreign_format(model_id):
        kind, reader, base = foreign
        raise ModelNotFound(
            f"{model_id!r} is {base} for {reader} ({kind}), which neither engine reads; take {base}, or a checkpoint "
            f"of it in AWQ, GPTQ, FP8, NVFP4 or bitsandbytes' 4 bit{on_apple(kind, model_id, base)}"
        )
    if named := layouts_by_name(model_id):
        return ReadCheckpoint(None, named.heavy.config, by_name=named)
    if maker_base := base_of(model_id):
        note = f"{model_id} can't be read: planned as {maker_base} in 16 bit, which its name says it is made from"
        word = packed_word(model_id) or ""
        if word:
            note += f", as the packing that its name tells ({word}) is not known; {FOR_EXACT}"
        return ReadCheckpoint(None, bundled_config(maker_base) or {}, notes=(note,), packed_word=word)
    near = near_ids(model_id, ("demo", *_known()))
    raise ModelNotFound(_not_found(model_id, near))


def _at(model_id: str, revision: str) -> ReadCheckpoint:
    """A hub id at a revision, from the cache or the hub. Raises ModelNotFound, with the revisions that are there."""
    read = read_snapshot(model_id, revision)
    if read is not None:
        return read
    if may_ask_hub(model_id):
        from qserve.hub import remote

        fetched = remote.fetch(model_id, revision)
        if fetched is not None:
            return fetched
    raise ModelNotFound(_not_there(model_id, revision))


def _not_there(model_id: str, revision: str) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE")
    if _HUB_ID.fullmatch(model_id) is None:
        hub = "which is no id of the hub that could be asked for it"
    else:
        hub = f"and HF_HUB_OFFLINE={offline} forbids asking the hub" if offline else "and the hub could not be asked"
    instead = "fetch it where there is a network, or leave the revision out"
    if known_revisions := told_revisions(model_id):
        instead = f"the cache has {known_revisions}; name one of these, {instead}"
    elif bundled_config(model_id):
        instead += " to plan from the bundled dimensions, which pin none"
    return f"{model_id!r} at revision {revision!r} is not in the local cache, {hub}; {instead}"


def told_revisions(model_id: str) -> str:
    """The revisions of a model that the local cache has, for people; empty where it has none."""
    found = cache.revisions(model_id).items()
    return ", ".join(f"{', '.join(names)} ({commit})" if names else commit for commit, names in found)


def is_offline() -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the hub."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def may_ask_hub(model_id: str) -> bool:
    """Whether it can be an id of the hub, and nothing forbids asking."""
    return not is_offline() and _HUB_ID.fullmatch(model_id) is not None


def _not_found(model_id: str, near: tuple[str, ...]) -> str:
    if "/" not in model_id:
        hub = ""
    elif offline := os.environ.get("HF_HUB_OFFLINE"):
        hub = f", and HF_HUB_OFFLINE={offline} forbids asking the hub"
    else:
        hub = ", and the hub could not be asked"
    *others, last = near or ("",)
    hint = f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if near else "see `qserve models`"
    return f"{model_id!r} is not a folder, not a known model and not in the local cache{hub}; {hint} ({_WAYS})"
