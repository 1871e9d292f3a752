"""A layer's experts in fp8, of which none is made 16 bit as a whole: on a card by grouped products of our own.

Those wait for nothing and launch as much for any routing (`triton_experts.py`). They are taken where a trial found them
right (`experts_trial.py`). Elsewhere, and on a CPU, each expert that is hit is multiplied by as a linear layer is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers.activations import ACT2FN

from qserve.errors import BrokenCheckpoint
from qserve.model.cuda.products import Product
from qserve.model.fp8.products import multiply
from qserve.model.fp8.routing import GROUPED, ExpertsShape, GroupedWeight
from qserve.model.fp8.weight import CODES, Fp8Weight, block_of

__all__ = ["Fp8Experts", "by_loop", "fp8_experts"]

Shape = tuple[int, ...]
_SILU = nn.SiLU, type(ACT2FN["silu"])


class Fp8Experts(nn.Module):
    """In place of the library's module, with its names: gate above up [experts, 2 · inner, hidden], and down.

    Scales lie beside them, one expert's after the other's, named as the file names them: `gate_up_proj_scale_inv`.
    """

    def __init__(self, experts: Any, end: str, gate: Shape, down: Shape, block: tuple[int, int] | None) -> None:
        """`end`: of the names of scales; `gate`, `down`: the shapes of one expert's; `block`: as `Fp8Linear` has it.

        Raises BrokenCheckpoint for scales that are not of the experts' shapes.
        """
        super().__init__()
        self.num_experts, self.hidden_dim, self.intermediate_dim = (
            int(size) for size in (experts.num_experts, experts.hidden_dim, experts.intermediate_dim)
        )
        inner, hidden = self.intermediate_dim, self.hidden_dim
        found = block_of((inner, hidden), gate, block), block_of((hidden, inner), down, block)
        if found[0] is None or found[1] is None or not len(gate) == len(down) == 2:
            raise BrokenCheckpoint(
                f"scales of shape {list(gate)} and {list(down)} don't match experts of {inner} × {hidden} in fp8, in "
                f"blocks of {block}: is weight_block_size of another model?"
            )
        self.act_fn = experts.act_fn
        self.can_be_grouped = isinstance(experts.act_fn, _SILU)  # the kernel has no other
        self._end, self._gate_block, self._down_block = end, found[0], found[1]
        num = self.num_experts
        self.gate_up_proj = _empty(num, 2 * inner, hidden, dtype=CODES)
        self.register_parameter(f"gate_up_proj{end}", _empty(num, 2 * gate[0], gate[1]))
        self.down_proj = _empty(num, hidden, inner, dtype=CODES)
        self.register_parameter(f"down_proj{end}", _empty(num, *down))

    @property
    def shape(self) -> ExpertsShape:
        """What a grouped product is tried by."""
        sizes = self.num_experts, self.hidden_dim, self.intermediate_dim
        return ExpertsShape(*sizes, *self._gate_block, *self._down_block)

    @property
    def weights(self) -> tuple[GroupedWeight, GroupedWeight]:
        """Gate above up, and down."""
        gate, down = (self.get_parameter(f"{name}_proj{self._end}").data.float() for name in ("gate_up", "down"))
        upper = GroupedWeight(self.gate_up_proj.data, gate, self._gate_block)
        return upper, GroupedWeight(self.down_proj.data, down, self._down_block)

    def held(self, expert: int) -> tuple[tuple[Fp8Weight, ...], Fp8Weight]:
        """Gate and up, as one weight where a block of rows is not cut off between them, and down."""
        upper, down = self.weights
        both, gate, inner = upper.codes[expert], upper.scales[expert], self.intermediate_dim
        if inner % self._gate_block[0] == 0 and self._gate_block[0] < inner:
            parts: tuple[Fp8Weight, ...] = (Fp8Weight(both, gate, self._gate_block),)
        else:
            half = len(gate) // 2
            parts = (
                Fp8Weight(both[:inner], gate[:half], self._gate_block),
                Fp8Weight(both[inner:], gate[half:], self._gate_block),
            )
        return parts, Fp8Weight(down.codes[expert], down.scales[expert], self._down_block)

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_states` [tokens, hidden], experts of each token and their weights [tokens, k] to [tokens, hidden].

        Experts that no token has are not read.
        """
        tiles = GROUPED.get((str(hidden_states.device), self.shape)) if self.can_be_grouped else None
        if tiles is None:
            return by_loop(self, hidden_states, top_k_index, top_k_weights)
        from qserve.model.fp8.triton_experts import grouped

        return grouped(hidden_states, top_k_index, top_k_weights, *self.weights, tiles)


def by_loop(
    experts: Fp8Experts,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
    product: Product = multiply,  # type: ignore[assignment]  # of weights in fp8 alone
) -> torch.Tensor:
    """As `Fp8Experts.forward`, expert by expert: the host asks the card once which have tokens."""
    answer = torch.zeros_like(hidden_states, dtype=torch.float32)
    chosen, order = top_k_index.flatten().sort(stable=True)
    tokens, weights = order // top_k_index.shape[1], top_k_weights.flatten()[order]
    every = torch.arange(experts.num_experts, device=chosen.device)
    start = 0
    for expert, end in enumerate(torch.searchsorted(chosen, every, right=True).tolist()):
        if end > start:
            own = tokens[start:end]  # each token once, so that the sum has one order
            rows = hidden_states[own]
            upper, down = experts.held(expert)
            parts = [product(rows, one, None) for one in upper]
            gate, up = parts if len(parts) == 2 else parts[0].chunk(2, dim=-1)
            said = product(experts.act_fn(gate) * up, down, None) * weights[start:end, None]
            answer.index_add_(0, own, said.float())
        start = end
    return answer.to(hidden_states.dtype)


def fp8_experts(model: nn.Module) -> Iterator[Fp8Experts]:
    """Those whose weights are in memory: accelerate brings others when they are called."""
    for module in model.modules():
        if isinstance(module, Fp8Experts) and module.down_proj.device.type != "meta":
            yield module


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
