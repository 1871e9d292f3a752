"""Finding the head among a checkpoint's tensors, and refusing one that is missing or of the wrong shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from qserve.errors import BrokenCheckpoint
from qserve.reward.checkpoints.describe import HeadLayer, RewardHead, StoredTensor

__all__ = ["body_prefix", "find_head", "strip_wrappers"]

# What training scripts call their heads; `v_head.summary` is TRL's, `score` that of transformers.
KNOWN_HEADS = (
    "v_head.summary", "reward_head", "score", "value_head", "classifier", "regression_head", "rm_head", "v_head",
)  # fmt: skip
# Wrappers leave their names before everything: DistributedDataParallel, torch.compile, peft's modules_to_save.
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
_SAVED = re.compile(r"(?:\.modules_to_save(?:\.default)?|\.original_module)(?=\.)")
_EMBEDDING = re.compile(r"^(.*?)(?:embed_tokens|wte)\.weight$")


def strip_wrappers(name: str) -> str:
    """The name that the model itself gives a tensor."""
    return _SAVED.sub("", _WRAPPERS.sub("", name))


def body_prefix(tensors: Iterable[StoredTensor]) -> str | None:
    """What stands before the body's own names: everything before `embed_tokens.weight`. None without an embedding."""
    return next((match[1] for tensor in tensors if (match := _EMBEDDING.match(tensor.name))), None)


def find_head(tensors: Sequence[StoredTensor], asked: str | None, hidden_size: int, where: str) -> RewardHead | None:
    """The head called `asked`, or the first of the known ones; None when there is none.

    Raises BrokenCheckpoint for a head that was asked for and is not there, and for one whose shape fits no reward.
    """
    for name in (asked,) if asked else KNOWN_HEADS:
        found = _layers(tensors, name)
        if found:
            return _checked(RewardHead(found[0], found[1]), hidden_size, where)
    if asked:
        raise BrokenCheckpoint(
            f"{where} has no head {asked!r} (--head); outside its layers it has: {_outside(tensors)}"
        )
    return None


def _layers(tensors: Sequence[StoredTensor], name: str) -> tuple[str, tuple[HeadLayer, ...]] | None:
    """(full prefix, layers). A Sequential's linear layers are `name.0` and `name.2`."""
    pattern = re.compile(rf"^(.*?\b{re.escape(name)})(?:\.(\d+))?\.(weight|bias)$")
    parts: dict[int, dict[str, StoredTensor]] = {}
    prefix = name
    for tensor in tensors:
        match = pattern.match(strip_wrappers(tensor.name))
        if match is not None and ".layers." not in match[1]:
            parts.setdefault(int(match[2] or 0), {})[match[3]] = tensor
            prefix = match[1]
    layers = [HeadLayer(part["weight"], part.get("bias")) for _, part in sorted(parts.items()) if "weight" in part]
    return (prefix, tuple(layers)) if layers else None


def _checked(head: RewardHead, hidden_size: int, where: str) -> RewardHead:
    shapes = [list(layer.weight.shape) for layer in head.layers]
    widths = [hidden_size, *(shape[0] for shape in shapes)]
    chained = all(len(shape) == 2 and shape[1] == width for shape, width in zip(shapes, widths, strict=False))
    biased = all(
        layer.bias is None or layer.bias.shape == (shape[0],) for layer, shape in zip(head.layers, shapes, strict=True)
    )
    if not chained or not biased or len(shapes) > 2:
        raise BrokenCheckpoint(
            f"{where}: the head {head.prefix!r} has the shape {' then '.join(map(str, shapes))}, but the body's hidden "
            f"size is {hidden_size}: a head is [labels, {hidden_size}], or two layers with a ReLU between them. "
            "Is it the head of another model?"
        )
    if len(shapes) == 2 and head.num_labels > 2:
        raise BrokenCheckpoint(
            f"{where}: the head {head.prefix!r} has {head.num_labels} labels after a ReLU ({shapes[-1]}); with two "
            "layers a reward model has one label and a process reward model two"
        )
    return head


def _outside(tensors: Sequence[StoredTensor]) -> str:
    names = {strip_wrappers(tensor.name) for tensor in tensors}
    return ", ".join(sorted(name for name in names if not re.search(r"\.(layers|h)\.\d", name))[:8]) or "nothing"
