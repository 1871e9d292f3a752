"""Tokens through decoder layers whose linear layers are all `CompiledLinear`: a step in one call (layers.c).

Long steps go layer by layer, so that each can be told as progress; experts are computed by the library's module.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from qserve.model.cpu import kernels
from qserve.model.cpu.build import library
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.cpu.matrix import CMatrix, Matrix

__all__ = ["CompiledLayers", "Reads", "are_computed", "kinds_agree", "row_ranges", "rows_between", "tell_begin"]

# Tokens of a step that is over before anybody looks for progress.
_AT_ONCE = 64
# So many rows are read in pieces by products. Rows at a power of two from each other would take each other's places in
# the nearest cache; elements that keep them apart: a cache line of them.
_MANY_ROWS, _BETWEEN = 17, 32
_EMPTY = torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True)
class Reads:
    """What each token attends to, for all layers of a pass.

    Attributes:
        texts: int64 [texts, 5], as `kernels.attend` has them.
        rows: int64, which tokens are the one of a sequence that decodes.
        spans: int64 [len(rows), 2], where the keys of those begin and end in `places`.
        places: int64, the row of each key in the cache; None where the new keys are all there are.
        written: int64 [tokens], the row of each new key in the cache; None without a cache.
        caches: keys and values of each layer, [rows, kv_heads · size]; None without a cache.

    """

    texts: torch.Tensor
    rows: torch.Tensor = _EMPTY
    spans: torch.Tensor = _EMPTY
    places: torch.Tensor | None = None
    written: torch.Tensor | None = None
    caches: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None


class _CLayer(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("input_norm", "post_norm", "query_norm", "key_norm")),
        *((name, ctypes.POINTER(CMatrix)) for name in ("query", "key", "value", "output", "gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
    )


_COUNTS = (
    "tokens",
    "hidden",
    "heads",
    "kv_heads",
    "size",
    "inner",
    "has_delta",
    "num_rows",
    "num_texts",
    "between",
    "num_ranges",
)
_ROWS = ("states", "delta", "normed", "query", "key", "value", "mixed", "gate", "cos", "sin")
_PLACES = ("written", "places", "rows", "spans", "texts")


class _CStep(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _COUNTS),
        *((name, ctypes.c_float) for name in ("eps", "head_eps", "scaling", "unused")),
        *((name, ctypes.c_void_p) for name in (*_ROWS, *_PLACES, "ranges")),
    )


class CompiledLayers:
    """The layers of a body that suits (`dense.py`)."""

    def __init__(self, body: Any) -> None:
        self._body = body
        self._layers = list(body.layers)
        self._c = (_CLayer * len(self._layers))(*map(_layer_of, self._layers))
        attention = self._layers[0].self_attn
        self._size, self._scaling = attention.head_dim, attention.scaling
        self._query, self._kv = attention.q_proj.out_features, attention.k_proj.out_features
        self._inner = max((one.mlp.gate_proj.out_features for one in self._layers if _is_dense(one.mlp)), default=0)
        norm = getattr(attention, "q_norm", None)
        self._head_eps = 0.0 if norm is None else norm.variance_epsilon
        self._bound: dict[int, tuple[torch.Tensor, torch.Tensor]] | None = None
        """The caches that C reads: whoever takes many steps hands over the same ones."""

    @classmethod
    def of(cls, body: Any) -> CompiledLayers | None:
        """None where a linear layer is none of ours, or attention takes no prompts for heads of this size."""
        linears = (part for layer in body.layers for part in _linears(layer))
        if not all(isinstance(part, CompiledLinear) for part in linears) or not _kinds_agree(body.layers):
            return None
        return cls(body) if kernels.can_attend(body.layers[0].self_attn.head_dim) else None

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        reads: Reads,
        wanted: torch.Tensor | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> torch.Tensor:
        """Last hidden states [tokens, hidden size] of `ids` [tokens]; of the places `wanted` only, if there are any.

        `begun` is called right before the first layer: other threads' Python can run while it computes.
        """
        states = self._body.embed_tokens(ids).contiguous()
        cos, sin = (angles[0].contiguous() for angles in self._body.rotary_emb(states[None], positions[None]))
        step = self._step(states, cos, sin, reads, row_ranges(reads.rows, len(ids)))
        self._with_caches(reads)
        last = len(self._layers) - 1 if wanted is not None else len(self._layers)
        begun()
        self._run(step, last)
        if wanted is not None:
            step = self._finish_wanted(step, wanted, row_ranges(reads.rows, len(ids), wanted))
        norm = self._body.norm
        return kernels.add_rms_norm(step.tensors["states"], step.tensors["delta"], norm.weight, norm.variance_epsilon)

    def _run(self, step: _Step, stop: int) -> None:
        """The first `stop` layers."""
        begun = 0
        while begun < stop:
            layer = self._layers[begun]
            tell_begin(layer)
            if not _is_dense(layer.mlp):
                self._attend(begun, step)
                self._mix_experts(begun, step)
            count = stop - begun if len(step.tensors["states"]) <= _AT_ONCE and self._inner and self._all_dense else 1
            if _is_dense(layer.mlp):
                _call("run_layers", self._at(begun), ctypes.c_long(count), ctypes.byref(step.c))
            begun += count
            step.c.has_delta = 1

    @property
    def _all_dense(self) -> bool:
        return all(_is_dense(layer.mlp) for layer in self._layers)

    def _at(self, index: int) -> Any:
        return ctypes.byref(self._c, index * ctypes.sizeof(_CLayer))

    def _attend(self, index: int, step: _Step) -> None:
        _call("attend_layer", self._at(index), ctypes.byref(step.c))

    def _mix_experts(self, index: int, step: _Step) -> None:
        """The rest of a layer with experts."""
        _call("finish_layer", self._at(index), ctypes.byref(step.c))
        step.tensors["delta"].copy_(self._layers[index].mlp(step.tensors["normed"][None])[0])

    def _finish_wanted(self, step: _Step, wanted: torch.Tensor, ranges: torch.Tensor) -> _Step:
        """The last layer, of which only some rows are needed beyond attention."""
        last = len(self._layers) - 1
        tell_begin(self._layers[last])
        self._attend(last, step)
        tensors = {name: step.tensors[name][wanted].contiguous() for name in ("states", "mixed")}
        fewer = self._step(tensors["states"], None, None, None, ranges, mixed=tensors["mixed"])
        if _is_dense(self._layers[last].mlp):
            _call("finish_layer", self._at(last), ctypes.byref(fewer.c))
        else:
            self._mix_experts(last, fewer)
        return fewer

    def _with_caches(self, reads: Reads) -> None:
        if reads.caches is not None and reads.caches is self._bound:
            return
        self._bound = reads.caches
        for layer, c in zip(self._layers, self._c, strict=True):
            found = None if reads.caches is None else reads.caches[layer.self_attn.layer_idx]
            c.keys, c.values = (None, None) if found is None else (found[0].data_ptr(), found[1].data_ptr())

    def _step(
        self,
        states: torch.Tensor,
        cos: torch.Tensor | None,
        sin: torch.Tensor | None,
        reads: Reads | None,
        ranges: torch.Tensor,
        mixed: torch.Tensor | None = None,
    ) -> _Step:
        tokens, hidden = states.shape
        widths = {"delta": hidden, "query": self._query, "key": self._kv, "value": self._kv}
        between = rows_between(tokens) if self._all_dense else 0
        tensors = {name: states.new_empty(tokens, width) for name, width in widths.items()}
        tensors |= {"states": states, "gate": states.new_empty(tokens, self._inner + between)}
        tensors["normed"] = states.new_empty(tokens, hidden + between)
        tensors["mixed"] = states.new_zeros(tokens, self._query) if mixed is None else mixed
        rows = {**tensors, "cos": cos, "sin": sin}
        places = {name: getattr(reads, name, None) for name in _PLACES} | {"ranges": ranges}
        counts = {
            "tokens": tokens,
            "hidden": hidden,
            "heads": self._query // self._size,
            "kv_heads": self._kv // self._size,
            "size": self._size,
            "inner": self._inner,
            "num_rows": 0 if reads is None else len(reads.rows),
            "num_texts": 0 if reads is None else len(reads.texts),
            "between": between,
            "num_ranges": len(ranges),
        }
        addresses = {name: None if one is None else one.data_ptr() for name, one in {**rows, **places}.items()}
        eps = self._layers[0].input_layernorm.variance_epsilon
        c = _CStep(**counts, eps=eps, head_eps=self._head_eps, scaling=self._scaling, **addresses)
        return _Step(c, tensors, tuple(one for one in (cos, sin, *places.values()) if one is not None))


@dataclass(frozen=True)
class _Step:
    """What C writes and reads, and the tensors whose memory that is."""

    c: _CStep
    tensors: dict[str, torch.Tensor]
    read: tuple[torch.Tensor, ...]


def row_ranges(decoding: torch.Tensor, tokens: int, chosen: torch.Tensor | None = None) -> torch.Tensor:
    """Rows of a step by their kind: int64 [ranges, 3], start, stop, of prompts or not (`row_range` of products.h).

    Args:
        decoding: int64, which of `tokens` are the one of a sequence that decodes; all others are of prompts.
        chosen: int64, the tokens that are left in the rows; None: all.

    """
    count = tokens if chosen is None else len(chosen)
    if len(decoding) in {0, tokens}:
        return torch.tensor([[0, count, not len(decoding)]], dtype=torch.int64)
    of_prompts = torch.ones(tokens, dtype=torch.int64).index_fill_(0, decoding, 0)
    of_prompts = of_prompts if chosen is None else of_prompts[chosen]
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), of_prompts.diff().nonzero().flatten() + 1])
    stops = torch.cat([starts[1:], torch.tensor([count])])
    return torch.stack((starts, stops, of_prompts[starts]), 1)


def rows_between(tokens: int) -> int:
    """Elements between two rows that products read, of so many."""
    return _BETWEEN if tokens >= _MANY_ROWS else 0


def tell_begin(layer: Any) -> None:
    """What calling the layer itself would do first: signs of progress are such hooks (`batching/progress.py`)."""
    for hook in layer._forward_pre_hooks.values():
        hook(layer, ())


def _is_dense(mlp: Any) -> bool:
    return hasattr(mlp, "gate_proj")


def _linears(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    found = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return found + ([mlp.gate_proj, mlp.up_proj, mlp.down_proj] if _is_dense(mlp) else [])


def _kinds_agree(layers: Any) -> bool:
    """Products of one phase read the states prepared once: their formats are the same."""
    for layer in layers:
        attention, mlp = layer.self_attn, layer.mlp
        groups = [[attention.q_proj, attention.k_proj, attention.v_proj]]
        groups += [[mlp.gate_proj, mlp.up_proj]] if _is_dense(mlp) else []
        if not all(map(kinds_agree, groups)):
            return False
    return True


def are_computed(body: Any, layers: frozenset[str]) -> bool:
    """Whether a body is made of these layers, gated by SiLU, and lies in bf16 on a CPU without hooks."""
    found = getattr(body, "layers", ())
    if not found or any(type(layer).__name__ not in layers for layer in found):
        return False
    if getattr(body.config, "hidden_act", "silu") != "silu" or any(hasattr(m, "_hf_hook") for m in body.modules()):
        return False
    on_cpu = all(state.device.type == "cpu" for state in (*body.parameters(), *body.buffers()))
    return on_cpu and all(layer.input_layernorm.weight.dtype == torch.bfloat16 for layer in found)


def kinds_agree(linears: list[Any]) -> bool:
    """Whether products with the same states can read them prepared once."""
    return len({_prepared(one.matrix) for one in linears}) <= 1


def _prepared(matrix: Matrix) -> tuple[int, int, bool, int, bytes]:
    order = b"" if matrix.order is None else matrix.order.numpy().tobytes()
    return matrix.kind, matrix.block, matrix.offsets is not None, matrix.activation_bits, order


def _layer_of(layer: Any) -> _CLayer:
    attention = layer.self_attn
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    matrices = [ctypes.pointer(one.matrix.c) for one in _linears(layer)]
    missing = [None] * (7 - len(matrices))
    return _CLayer(*(None if one is None else one.weight.data_ptr() for one in norms), *matrices, *missing, None, None)


def _call(name: str, *arguments: Any) -> None:
    found = library()
    assert found is not None, "the library was loaded when these layers were made"
    if getattr(found, name)(*arguments):
        raise MemoryError("a step of the decoder's layers")
