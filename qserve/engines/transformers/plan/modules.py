"""The modules that a device map places, each with the bytes that it brings: embeddings, every layer, and the head."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor
from qserve.engines.transformers.plan.device_map import Module, Modules

__all__ = ["modules_of", "tensors_by_layer"]

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.")
_EXPERT = re.compile(r"(\.experts)\.\d+\..*$")
Count = Callable[[Iterable[Tensor]], int]
"""Bytes of tensors once they are loaded."""


def modules_of(spec: ModelSpec, tensors: Iterable[Tensor], count: Count, count_offloaded: Count) -> Modules:
    """Every module of a causal language model, named as transformers names them, without its cache.

    Args:
        spec: the model.
        tensors: of the checkpoint; equal ones may stand once, with `repeat`.
        count: their bytes where they compute.
        count_offloaded: their bytes in RAM or on disk beside a card.

    A tied head has no weights of its own and goes where the embedding goes.

    """
    by_layer, outside = tensors_by_layer(spec, tensors)
    alike: dict[tuple[Tensor, ...], Module] = {}  # most layers are; each kind is counted once
    for held in map(tuple, by_layer):
        if held not in alike:
            alike[held] = _module("", held, count, count_offloaded)
    layers = tuple(replace(alike[tuple(held)], name=f"model.layers.{index}") for index, held in enumerate(by_layer))
    of_role: dict[str, list[Tensor]] = {}
    for tensor in outside:
        of_role.setdefault(tensor.role, []).append(tensor)
    embedding = _module("model.embed_tokens", of_role.get("embedding", []), count, count_offloaded)
    vision = [_module("model.visual", of_role["vision"], count, count_offloaded)] if "vision" in of_role else []
    # A scoring head has its own role; a model has one of the two.
    head = _module("lm_head", [*of_role.get("lm_head", []), *of_role.get("head", [])], count, count_offloaded)
    norm = _module("model.norm", of_role.get("norm", []), count, count_offloaded)
    first = [embedding, Module("model.rotary_emb", 0), *vision]
    if spec.tie_word_embeddings:
        return Modules((*first, head), layers, (norm,))
    return Modules(tuple(first), layers, (norm, head))


def tensors_by_layer(spec: ModelSpec, tensors: Iterable[Tensor]) -> tuple[list[list[Tensor]], list[Tensor]]:
    """(tensors of each layer, tensors outside of the layers). One that is told once with `repeat` is dealt out."""
    layers: list[list[Tensor]] = [[] for _ in spec.layer_types]
    outside: list[Tensor] = []
    for tensor in tensors:
        found = _LAYER.search(tensor.name)
        if found is None or tensor.role in ("vision", "audio", "mtp"):
            outside.append(tensor)
            continue
        # Told once, it stands under index 0; a layer's own tensor of index 0 comes out the same way.
        owners = [int(found[1])] if int(found[1]) else _owners(spec, tensor)
        for owner, share in zip(owners, _shares(tensor, len(owners)), strict=True):
            if owner < len(layers) and share.repeat:
                layers[owner].append(share)
    return layers, outside


def _owners(spec: ModelSpec, tensor: Tensor) -> list[int]:
    """The layers that have such a tensor, as far as its name tells."""
    is_linear = [kind == "linear_attention" for kind in spec.layer_types]
    everyone = list(range(len(is_linear)))
    if ".linear_attn." in tensor.name:
        return [index for index in everyone if is_linear[index]]
    if ".self_attn." in tensor.name:
        return [index for index in everyone if not is_linear[index]]
    return everyone


def _shares(tensor: Tensor, count: int) -> list[Tensor]:
    """`tensor` in `count` parts; where its number does not divide (layers that differ), the first get one more."""
    whole, more = divmod(tensor.repeat, count)
    each = tensor.nbytes // tensor.repeat
    share = {number: replace(tensor, repeat=number, nbytes=each * number) for number in {whole, whole + bool(more)}}
    return [share[whole + (index < more)] for index in range(count)]


def _module(name: str, tensors: Iterable[Tensor], count: Count, count_offloaded: Count) -> Module:
    kept = list(tensors)
    pieces: dict[str, list[Tensor]] = {}
    for tensor in kept:
        owner = _EXPERT.sub(r"\1", tensor.name)  # the experts of a layer are one module, and travel together
        pieces.setdefault(owner if owner != tensor.name else tensor.name.rpartition(".")[0], []).append(tensor)
    largest = max((count_offloaded(piece) for piece in pieces.values()), default=0)
    return Module(name, count(kept), 0, count_offloaded(kept), largest)
