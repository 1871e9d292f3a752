"""What a quantized checkpoint that can't be read may hold: every way in which its name is usually packed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config
from qserve.hub.named import named_config
from qserve.planner.packed import packed_base, packings_of
from qserve.units import format_bytes

__all__ = ["FOR_EXACT", "Layout", "NamedLayouts", "guessed", "layouts_by_name"]

_Packing = Mapping[str, Any]
FOR_EXACT = "for exact figures give its folder, or let qserve plan reach the hub once: it reads config.json alone"
_EVERY = "every linear layer packed"
_OF_COMPRESSED = ("lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*visual.*", "re:mtp.*")
_SCALARS = "re:.*linear_attn.in_proj_[ab]$"
# What makers leave in 16 bit of hybrids: nothing (natfii/Qwen3.6-27B-VLM-NVFP4-MTP, LibertAIDAI/Qwen3.6-27B-W4A16-G128,
# the AutoRound ones), what goes into linear attention (Inferact/Qwen3.8-27B-NVFP4), or all of it (the recipes of
# llm-compressor and RedHatAI). Of experts: attention and shared experts too (nvidia/Qwen3.5-122B-A10B-NVFP4).
_OF_HYBRIDS = (
    ("the inputs of linear attention in 16 bit", ("re:.*linear_attn.in_proj.*",)),
    ("linear attention in 16 bit", ("re:.*linear_attn.*",)),
)
# GPTQ of hybrids by Qwen itself (configs/models.toml, [stored]): MLPs alone.
_OF_GPTQ_HYBRIDS = (("attention and linear attention in 16 bit", ("re:.*linear_attn.*", "re:.*self_attn.*")),)
_OF_EXPERTS = ("experts alone packed", ("re:.*linear_attn.*", "re:.*self_attn.*", "re:.*shared_expert.*"))
# Unsloth's leave in 16 bit what errs most, by layer: 20.81 GiB of Qwen3.8-27B, 18.12 where all is packed (public index,
# id 71124810209). Which modules these are no name tells; this is more than what is known of.
_OF_UNSLOTH = ("attention and the outputs of linear attention in 16 bit", ("self_attn", "linear_attn.out_proj"))
_PACKS_ALL = ("auto-round", "bitsandbytes")
"""Methods whose quantizers pack every linear layer that they know."""
_FINE = 32
"""Columns of a group where a maker takes the smallest that kernels have, with zero points: cyankiwi's 4 bit."""


@dataclass(frozen=True)
class Layout:
    """One way in which a checkpoint can be packed: in words, as a config, and the bytes of its weights."""

    words: str
    config: Mapping[str, Any]
    num_bytes: int


@dataclass(frozen=True)
class NamedLayouts:
    """The 16-bit model that a name tells, and the ways in which it may be packed, the largest first.

    `are_revisions`: they are those of the repository, which changed, and not what its name can mean.
    """

    base: str
    layouts: tuple[Layout, ...]
    are_revisions: bool = False

    @property
    def heavy(self) -> Layout:
        return self.layouts[0]

    @property
    def light(self) -> Layout:
        return self.layouts[-1]


def layouts_by_name(model_id: str) -> NamedLayouts | None:
    """Those of its revisions where they are known, else what its name can mean; None where it tells no such thing."""
    base, known = packed_base(model_id), packings_of(model_id)
    are_revisions = base is not None and len(known) > 1
    if base is None or not known:
        named = named_config(model_id)
        if named is None:
            return None
        base, usual = named
        known = tuple(_packings(ModelSpec.from_config(usual, model_id), usual["quantization_config"]))
    config = bundled_config(base) or {}
    found = (_layout(model_id, words, {**config, "quantization_config": packing}) for words, packing in known)
    return NamedLayouts(base, tuple(sorted(found, key=lambda one: one.num_bytes, reverse=True)), are_revisions)


def guessed(checkpoint: Checkpoint, named: NamedLayouts) -> Checkpoint:
    """`checkpoint`, which is the largest of the layouts, with the smallest beside it and the line that says so."""
    heavy, light = named.heavy, named.light
    line = _line(checkpoint.id, named)
    if heavy.num_bytes == light.num_bytes:
        return replace(checkpoint, guess=line)
    lighter = replace(
        checkpoint, config=light.config, spec=ModelSpec.from_config(light.config, checkpoint.id), layout=light.words
    )
    return replace(checkpoint, guess=line, layout=heavy.words, lighter=lighter)


def _line(model_id: str, named: NamedLayouts) -> str:
    heavy, light, base = named.heavy, named.light, named.base
    if heavy.num_bytes == light.num_bytes:
        return f"A guess by its name: {model_id} can't be read here, taken for {base} with {heavy.words}; {FOR_EXACT}"
    low, high = (f"{format_bytes(one.num_bytes)} ({one.words})" for one in (light, heavy))
    if named.are_revisions:
        return (
            f"It changed by revision: {model_id} can't be read here, and its revisions have weights of {low} to "
            f"{high}; the larger decide what fits; {FOR_EXACT}"
        )
    return (
        f"A guess by its name: {model_id} can't be read here, and {base} packed so has weights of {low} to {high}; the "
        f"larger decide what fits; {FOR_EXACT}"
    )


def _layout(model_id: str, words: str, config: Mapping[str, Any]) -> Layout:
    tensors = tensors_of(ModelSpec.from_config(config, model_id))
    return Layout(words, config, sum(one.nbytes for one in tensors if one.role != "mtp"))


def _packings(spec: ModelSpec, usual: _Packing) -> Iterator[tuple[str, _Packing]]:
    method = usual["quant_method"]
    if method in _PACKS_ALL:
        kept: list[tuple[str, tuple[str, ...]]] = [(_EVERY, ())]
        if "unsloth-bnb" in spec.id.lower():
            kept.append(_OF_UNSLOTH)
    else:
        of_hybrids = _OF_GPTQ_HYBRIDS if method == "gptq" else _OF_HYBRIDS
        every = (_EVERY, () if method == "gptq" else (_SCALARS,))
        kept = [every, *(of_hybrids if spec.is_hybrid else ()), *((_OF_EXPERTS,) if spec.moe else ())]
    for words, modules in kept:
        yield words, _leaving(usual, modules)
        finer = _in_fine_groups(usual)
        if finer is not None:
            yield f"{words}, in groups of {_FINE}", _leaving(finer, modules)


def _leaving(packing: _Packing, modules: tuple[str, ...]) -> _Packing:
    """With `modules` in 16 bit; of compressed-tensors, which covers every linear layer, head and encoder too."""
    if packing["quant_method"] == "compressed-tensors":
        return {**packing, "ignore": [*_OF_COMPRESSED, *modules]}
    return {**packing, "modules_to_not_convert": list(modules)}


def _in_fine_groups(packing: _Packing) -> _Packing | None:
    """Integers in the smallest groups; None for other formats."""
    if packing.get("bits") in (4, 8):
        return {**packing, "group_size": _FINE}
    groups = {
        name: {**group, "weights": {**group["weights"], "group_size": _FINE, "symmetric": False}}
        for name, group in packing.get("config_groups", {}).items()
        if group["weights"].get("type") == "int" and "input_activations" not in group
    }
    return {**packing, "config_groups": groups} if groups else None
