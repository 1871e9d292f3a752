"""Tokens through the layers of a hybrid in bf16 whose linear layers are all `CompiledLinear`: hybrid.c, step by step.

As `layers.py` does for dense models: a short step in one call, a long one layer by layer, so that each can be told as
progress; experts are computed by the library's module.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch

from qserve.core.families import layer_classes
from qserve.model.cpu import kernels
from qserve.model.cpu.build import library, why_none
from qserve.model.cpu.delta import CDeltaLayer, DeltaNet, first_products
from qserve.model.cpu.layers import are_computed, kinds_agree, row_ranges, rows_between, tell_begin
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import CMatrix

__all__ = ["HybridLayers", "HybridReads"]

_LAYERS = layer_classes("hybrid")
_MOST_IN = 4
# Tokens of a step that is over before anybody looks for progress.
_AT_ONCE = 64

Caches = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""By layer: keys and values [rows, kv_heads · size], or windows and states of linear attention (`DeltaNet.mix`)."""


@dataclass(frozen=True)
class HybridReads:
    """What each token attends to, for all layers of a pass.

    Attributes:
        written: int64 [tokens], the row of each new key in the cache.
        places: int64, the row of each key that is read.
        rows: int64, which tokens are the one of a sequence that decodes.
        spans: int64 [len(rows), 2], where the keys of those begin and end in `places`.
        texts: int64 [texts, 5], prompts as `kernels.attend` has them.
        delta_texts: int64 [sequences, 4], all of both as `DeltaNet.mix` has them.

    """

    written: torch.Tensor
    places: torch.Tensor
    rows: torch.Tensor
    spans: torch.Tensor
    texts: torch.Tensor
    delta_texts: torch.Tensor


_NORMS = ("input_norm", "post_norm", "query_norm", "key_norm")
_REST = ("output", "gate", "up", "down")
_CACHES = ("keys", "values", "windows", "memory")


class _CLayer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in _NORMS),
        ("first", ctypes.POINTER(CMatrix) * _MOST_IN),
        *((name, ctypes.POINTER(CMatrix)) for name in _REST),
        ("linear", ctypes.POINTER(CDeltaLayer)),
        *((name, ctypes.c_void_p) for name in _CACHES),
        ("num_alike", ctypes.c_int64),
    )


_COUNTS = (
    "tokens",
    "hidden",
    "heads",
    "kv_heads",
    "size",
    "turned",
    "has_delta",
    "num_rows",
    "num_texts",
    "num_delta_texts",
    "between",
    "num_ranges",
)
_ROWS = ("states", "delta", "normed", "projected", "query", "key", "value", "mixed", "gate", "cos", "sin")
_PLACES = ("written", "places", "rows", "spans", "texts", "delta_texts")


class _CStep(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_float) for name in ("eps", "scaling")),
        *((name, ctypes.c_void_p) for name in (*_ROWS, *_PLACES, "ranges")),
    )


@dataclass(frozen=True)
class _Widths:
    """Of a token's rows between the products, the largest of all layers, and what attention's heads are."""

    projected: int
    mixed: int
    inner: int
    heads: int
    kv_heads: int
    size: int


class HybridLayers:
    """The layers of a body, over caches that stay where they are."""

    def __init__(self, body: Any, caches: Caches) -> None:
        self._body, self._caches = body, caches
        self._layers = list(body.layers)
        self._nets = {
            index: net for index, layer in enumerate(self._layers) if (net := DeltaNet.of(_mixer(layer))) is not None
        }
        self._c = (_CLayer * len(self._layers))(*(self._layer_of(index) for index in range(len(self._layers))))
        self._full = next((_mixer(layer) for layer in self._layers if hasattr(layer, "self_attn")), None)
        self._widths = self._widths_of()
        self._all_dense = all(_is_dense(layer.mlp) for layer in self._layers)

    @classmethod
    def of(cls, body: Any, caches: Caches) -> HybridLayers | None:
        """None for bodies of other layers, where a linear layer is none of ours, and for heads that attention lacks."""
        if not are_computed(body, _LAYERS) or library() is None:
            return None
        for layer in body.layers:
            first, rest = _first(layer), _rest(layer)
            if not all(isinstance(one, CompiledLinear) for one in (*first, *rest)):
                return None
            # Of quantized linear attention the small products are in 16 bit.
            alike = len(first) if hasattr(layer, "self_attn") else _num_alike(first)
            if not all(map(kinds_agree, (first[:alike], first[alike:], rest[1:3]))):
                return None
            if not (_has_known_heads(layer) if hasattr(layer, "self_attn") else DeltaNet.of(layer.linear_attn)):
                return None
        return cls(body, caches)

    @staticmethod
    def why_not(body: Any) -> str | None:
        """What keeps a body that they would suit from them: half a sentence, or None."""
        return why_none() if are_computed(body, _LAYERS) else None

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, reads: HybridReads) -> torch.Tensor:
        """Last hidden states [tokens, hidden size] of `ids` [tokens]; the caches hold them then."""
        states = self._body.embed_tokens(ids).contiguous()
        cos, sin = (angles[0].contiguous() for angles in self._body.rotary_emb(states[None], positions[None]))
        tensors = self._tensors(states)
        rows = {**tensors, "cos": cos, "sin": sin, "ranges": row_ranges(reads.rows, len(ids))}
        step = self._step(rows, reads)
        begun = 0
        while begun < len(self._layers):
            layer = self._layers[begun]
            tell_begin(layer)
            count = len(self._layers) if len(ids) <= _AT_ONCE and self._all_dense else 1
            self._run(begun, count, step)
            if not _is_dense(layer.mlp):
                mixed = layer.mlp(tensors["normed"][None])
                tensors["delta"].copy_((mixed[0] if isinstance(mixed, tuple) else mixed)[0])
            begun += count
            step.has_delta = 1
        norm = self._body.norm
        return kernels.add_rms_norm(tensors["states"], tensors["delta"], norm.weight, norm.eps, centred=True)

    def _run(self, first: int, count: int, step: _CStep) -> None:
        compiled = library()
        assert compiled is not None, "the library was loaded when these layers were made"
        at = ctypes.byref(self._c, first * ctypes.sizeof(_CLayer))
        if compiled.run_hybrid_layers(at, ctypes.c_long(count), ctypes.byref(step)):
            raise MemoryError("a step of the hybrid's layers")

    def _tensors(self, states: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is written between the products."""
        tokens, hidden = states.shape
        own, between = self._widths, self._between(tokens)
        widths = {
            "delta": hidden,
            "normed": hidden + between,
            "projected": own.projected,
            "query": own.heads * own.size,
            "key": own.kv_heads * own.size,
            "value": own.kv_heads * own.size,
            "mixed": own.mixed,
            "gate": own.inner + between,
        }
        return {"states": states, **{name: states.new_empty(tokens, width) for name, width in widths.items()}}

    def _step(self, rows: dict[str, torch.Tensor], reads: HybridReads) -> _CStep:
        tokens, hidden = rows["states"].shape
        own = self._widths
        counts = {
            "tokens": tokens,
            "hidden": hidden,
            "heads": own.heads,
            "kv_heads": own.kv_heads,
            "size": own.size,
            "turned": rows["cos"].shape[1],
            "num_rows": len(reads.rows),
            "num_texts": len(reads.texts),
            "num_delta_texts": len(reads.delta_texts),
            "between": self._between(tokens),
            "num_ranges": len(rows["ranges"]),
        }
        tensors = {**rows, **{name: getattr(reads, name) for name in _PLACES}}
        addresses = {name: one.data_ptr() for name, one in tensors.items()}
        scaling = 1.0 if self._full is None else self._full.scaling
        return _CStep(**counts, eps=self._layers[0].input_layernorm.eps, scaling=scaling, **addresses)

    def _between(self, tokens: int) -> int:
        """Experts read rows that follow each other."""
        return rows_between(tokens) if self._all_dense else 0

    def _layer_of(self, index: int) -> _CLayer:
        layer, net = self._layers[index], self._nets.get(index)
        norms = [layer.input_layernorm, layer.post_attention_layernorm]
        norms += [] if net is not None else [layer.self_attn.q_norm, layer.self_attn.k_norm]
        made = _CLayer(**{name: one.weight.data_ptr() for name, one in zip(_NORMS, norms, strict=False)})
        for place, linear in enumerate(_first(layer)):
            made.first[place] = ctypes.pointer(linear.matrix.c)
        for name, linear in zip(_REST, _rest(layer), strict=False):
            setattr(made, name, ctypes.pointer(linear.matrix.c))
        if net is not None:
            made.linear, made.num_alike = ctypes.pointer(net.c), _num_alike(_first(layer))
        names = _CACHES[:2] if net is None else _CACHES[2:]
        for name, tensor in zip(names, self._caches[index], strict=True):
            assert tensor.is_contiguous()
            setattr(made, name, tensor.data_ptr())
        return made

    def _widths_of(self) -> _Widths:
        full, nets = self._full, self._nets.values()
        size = 0 if full is None else full.head_dim
        query, kv = (0, 0) if full is None else (full.o_proj.in_features, full.k_proj.out_features)
        inner = (layer.mlp.gate_proj.out_features for layer in self._layers if _is_dense(layer.mlp))
        return _Widths(
            projected=max([2 * query, *(net.c.width for net in nets)]),
            mixed=max([query, *(net.mixed_width for net in nets)]),
            inner=max(inner, default=0),
            heads=query // size if size else 0,
            kv_heads=kv // size if size else 0,
            size=size,
        )


def _mixer(layer: Any) -> Any:
    return layer.self_attn if hasattr(layer, "self_attn") else layer.linear_attn


def _first(layer: Any) -> list[Any]:
    """The products of the states, in the order in which hybrid.c has them."""
    mixer = _mixer(layer)
    if hasattr(layer, "self_attn"):
        return [mixer.q_proj, mixer.k_proj, mixer.v_proj]
    return [getattr(mixer, name) for name in first_products(mixer) or ()]


def _num_alike(linears: list[Any]) -> int:
    """How many of the first ones are of one kind."""
    return max(count for count in range(1, len(linears) + 1) if kinds_agree(linears[:count]))


def _rest(layer: Any) -> list[Any]:
    """The product behind attention; gate, up and down, if there are no experts."""
    mixer, mlp = _mixer(layer), layer.mlp
    output = mixer.o_proj if hasattr(layer, "self_attn") else mixer.out_proj
    return [output, *([mlp.gate_proj, mlp.up_proj, mlp.down_proj] if _is_dense(mlp) else [])]


def _is_dense(mlp: Any) -> bool:
    return hasattr(mlp, "gate_proj")


def _has_known_heads(layer: Any) -> bool:
    """Of full attention: queries come with gates, and both kernels take heads of this size."""
    mixer = layer.self_attn
    has_gates = mixer.q_proj.out_features == 2 * mixer.o_proj.in_features
    return has_gates and kernels.can_attend(mixer.head_dim) and kernels.can_attend_pages(mixer.head_dim)
