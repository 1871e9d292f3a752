"""From what the user wrote behind --model to a `Checkpoint`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.hub import cache, folder
from qserve.hub.bundled import alias_of, aliases, bundled_config, known_ids, sibling_ids
from qserve.hub.named import base_of, foreign_format, named_config
from qserve.hub.names import matching_ids, near_ids
from qserve.hub.served_folder import own_config
from qserve.hub.token_rows import rowless_tokens
from qserve.hub.weights import weight_files

__all__ = ["resolve"]

_WAYS = "a model is named by its folder, its hub id, a short name like qwen3-8b, or demo"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def resolve(model: str) -> Checkpoint:
    """The checkpoint that `model` names: a folder, `demo`, an alias, a hub id, or a short name that one model has.

    A hub id is looked up in the local Hugging Face cache, then on the hub (config and header bytes only; not when
    HF_HUB_OFFLINE is set), then among the bundled dimensions of configs/models.toml; a quantized checkpoint of one of
    those is at last planned by its name. Raises ModelNotFound,
    BrokenCheckpoint or UnknownArchitecture.
    """
    if model == "demo":
        from qserve.demo import chat_model_path  # pulls in the demo package only for the demo

        return _from_folder(Path(chat_model_path()), "demo")
    if _is_folder(model):
        return _from_folder(Path(model).expanduser(), model)
    if _looks_like_path(model):
        raise ModelNotFound(f"there is no folder {model!r}; {_WAYS}")
    alias = alias_of(model) or _meant(model)
    return _from_hub(alias[0], (alias[1],)) if alias else _from_hub(model, ())


def _meant(name: str) -> tuple[str, str] | None:
    """(hub id, note for the user) of a short name, or one in other letters; None for what is no name of one of ours.

    Raises ModelNotFound if it can be several.
    """
    known = _known()
    if name in known:
        return None
    found = matching_ids(name, known)
    if len(found) > 1:
        raise ModelNotFound(f"{name!r} can be {', '.join(found[:-1])} or {found[-1]}; write one of these")
    return (alias_of(found[0]) or (found[0], f"{name} is taken for {found[0]}")) if found else None


def _known() -> tuple[str, ...]:
    """Hub ids that can be named short: bundled models, their quantized siblings, aliases, what the cache holds."""
    return tuple(dict.fromkeys((*known_ids(), *sibling_ids(), *aliases(), *cache.cached_ids())))


def _is_folder(model: str) -> bool:
    try:
        return Path(model).expanduser().is_dir()
    except (OSError, RuntimeError, ValueError):  # a name that is too long, ~nobody, a null byte
        return False


def _looks_like_path(model: str) -> bool:
    return model.startswith(("/", "./", "../", "~")) or (_HUB_ID.fullmatch(model) is None and "/" in model)


def _from_folder(path: Path, model_id: str, messages: tuple[str, ...] = ()) -> Checkpoint:
    config = folder.read_config(path)
    ModelSpec.from_config(config, model_id)  # what is wrong with it is told before the files are
    tensors = folder.read_tensors(path)
    if tensors is None:
        messages = (*messages, f"{path} has no *.safetensors: planned from the dimensions of its config.json")
    return _of_files(path, model_id, config, tensors, messages)


def _of_files(
    path: Path, model_id: str, config: Mapping[str, Any], tensors: tuple[Tensor, ...] | None, messages: tuple[str, ...]
) -> Checkpoint:
    """Told are files that look like weights and are not read, and a config.json that says other than they hold."""
    config, untied = own_config(path, config)
    rowless = rowless_tokens(path, config)
    found = (weight_files(path).note, untied, None if rowless is None else str(rowless))
    notes = [note for note in found if note is not None]
    return Checkpoint(model_id, path, config, ModelSpec.from_config(config, model_id), tensors, (*messages, *notes))


def _from_hub(model_id: str, messages: tuple[str, ...]) -> Checkpoint:
    snapshot = cache.snapshot(model_id)
    if snapshot is not None and (snapshot / "config.json").is_file():
        return _from_cache(snapshot, model_id, messages)
    fetched = _fetch(model_id)
    if fetched is not None:
        config, tensors = fetched
        return Checkpoint(model_id, None, config, ModelSpec.from_config(config, model_id), tensors, messages)
    bundled = bundled_config(model_id)
    if bundled:
        note = f"{model_id} is not on this machine: planned from its bundled dimensions"
        return _from_dimensions(model_id, bundled, (*messages, note))
    foreign = foreign_format(model_id)
    if foreign:
        kind, reader, base = foreign
        raise ModelNotFound(
            f"{model_id!r} is {base} for {reader} ({kind}), which neither engine reads; take {base}, or a checkpoint "
            "of it in AWQ, GPTQ, FP8, NVFP4 or bitsandbytes' 4 bit"
        )
    named = named_config(model_id)
    if named:
        base, config = named
        note = f"{model_id} can't be read: planned from the dimensions of {base}, packed as its name says"
        return _from_dimensions(model_id, config, (*messages, note))
    maker_base = base_of(model_id)
    if maker_base:
        note = (
            f"{model_id} can't be read: planned as {maker_base} in 16 bit, which its name says it is made from; "
            "if it is quantized, it needs less"
        )
        return _from_dimensions(model_id, bundled_config(maker_base) or {}, (*messages, note))
    raise ModelNotFound(_not_found(model_id))


def _from_cache(snapshot: Path, model_id: str, messages: tuple[str, ...]) -> Checkpoint:
    """A cached snapshot. One without all of its weights is usual (a config was looked at): its dimensions count."""
    config = folder.read_config(snapshot)
    try:
        tensors = folder.read_tensors(snapshot)
    except BrokenCheckpoint:
        tensors = None
    if tensors is not None:
        return _of_files(snapshot, model_id, config, tensors, messages)
    note = f"the local cache of {model_id} is incomplete: planned from the dimensions of its config.json"
    return _from_dimensions(model_id, config, (*messages, note))


def _from_dimensions(model_id: str, config: Mapping[str, Any], messages: tuple[str, ...]) -> Checkpoint:
    return Checkpoint(model_id, None, config, ModelSpec.from_config(config, model_id), None, messages)


def _fetch(model_id: str) -> tuple[Mapping[str, Any], tuple[Tensor, ...] | None] | None:
    """None where the hub can't or may not be asked; what is bundled must then do."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE") or not _HUB_ID.fullmatch(model_id):
        return None
    # A model that we know by heart is not worth a network round trip: the plan answers in under half a second.
    if bundled_config(model_id):
        return None
    from qserve.hub import remote  # urllib is a tenth of what `qserve plan` imports, and a folder needs none of it

    return remote.fetch(model_id)


def _not_found(model_id: str) -> str:
    near = near_ids(model_id, ("demo", *_known()))
    if "/" not in model_id:
        hub = ""
    elif offline := os.environ.get("HF_HUB_OFFLINE"):
        hub = f", and HF_HUB_OFFLINE={offline} forbids asking the hub"
    else:
        hub = ", and the hub could not be asked"
    *others, last = near or ("",)
    hint = f"did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if near else "see `qserve models`"
    return f"{model_id!r} is not a folder, not a known model and not in the local cache{hub}; {hint} ({_WAYS})"
