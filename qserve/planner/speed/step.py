"""How long one step of the engine takes: the kernels of one rank, the engine's own time beside them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from qserve.planner.speed.terms import kernels
from qserve.planner.speed.terms.card import CardSpeed
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.network import Gemm, RankNetwork

__all__ = ["StepTimes", "Terms"]

_POINTWISE_SHARE = 0.75
"""Of the bandwidth, that norms, gates and rotary angles reach over the activations of a prompt."""


@dataclass(frozen=True)
class Terms:
    """One step in microseconds, by what takes the time."""

    gemms: float = 0.0
    experts: float = 0.0
    attention: float = 0.0
    states: float = 0.0
    reduce: float = 0.0
    lm_head: float = 0.0
    pointwise: float = 0.0
    engine: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(getattr(self, name) for name in Terms.__dataclass_fields__))

    @property
    def kernels(self) -> float:
        return self.total - self.engine


@dataclass
class StepTimes:
    """Times of steps of one replica. What depends on the number of tokens alone is computed once for each number.

    `cache` is the KV cache's format in the kernel tables (bf16, fp8). `stages` of a pipeline take turns: a step runs
    through all of them, and each works on its part of the running requests meanwhile.
    """

    card: CardSpeed
    network: RankNetwork
    costs: EngineCosts
    cache: str = "bf16"
    stages: int = 1
    _by_tokens: dict[int, tuple[Terms, float]] = field(default_factory=dict)
    """By tokens of a step: the terms, and the kernels' sum of them."""
    _heads_us: dict[int, float] = field(default_factory=dict)
    _dispatch_us: float = 0.0

    def __post_init__(self) -> None:
        costs, network = self.costs, self.network
        self._dispatch_us = (
            costs.dispatch_layer_us * network.num_layers
            + costs.dispatch_moe_us * network.moe_layers
            + costs.dispatch_state_us * network.state_layers
        )

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of a step that takes one token of `batch` sequences of `context` tokens in the mean."""
        network = self.network
        batch = -(-batch // self.stages)
        kernel = self._of_tokens(batch)[1] + self._head_us(batch) + self._decode_attention_us(batch, context)
        if network.state_layers:
            kernel += network.state_layers * kernels.state_decode_us(self.card, network.value_heads, batch)
        return (kernel + self.engine_us(batch)) / 1e6

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts in it: (new tokens, tokens before them) of each, and `batch` decodes."""
        new = sum(count for count, _ in chunks)
        costs, network = self.costs, self.network
        kernel = self._of_tokens(batch + new)[1] + self._head_us(batch + len(chunks)) + self._prefill_us(chunks)
        if batch:
            kernel += self._decode_attention_us(batch, context)
        busy = max(kernel * costs.prefill_factor + costs.layer_us * network.num_layers, self._dispatch_us)
        fixed_us = costs.step_us + costs.request_us * (batch + len(chunks))
        return (busy + fixed_us) / 1e6

    def decode_terms(self, batch: int, context: float) -> Terms:
        """The decode step, term by term, without what was learned."""
        network = self.network
        states = network.state_layers * kernels.state_decode_us(self.card, network.value_heads, batch)
        return replace(
            self._of_tokens(batch)[0],
            attention=self._decode_attention_us(batch, context),
            states=states if network.state_layers else 0.0,
            lm_head=self._head_us(batch),
            engine=self.engine_us(batch),
        )

    def engine_us(self, batch: int) -> float:
        """The engine's own time in a decode step."""
        costs, network = self.costs, self.network
        return (
            costs.step_us
            + costs.request_us * batch
            + costs.layer_us * network.num_layers
            + costs.moe_layer_us * network.moe_layers
            + costs.state_layer_us * network.state_layers
        )

    def _of_tokens(self, tokens: int) -> tuple[Terms, float]:
        """What depends on the tokens of a step alone; above 512 they are rounded to 32."""
        tokens = tokens if tokens <= 512 else -(-tokens // 32) * 32
        found = self._by_tokens.get(tokens)
        if found is None:
            terms = self._count(tokens)
            found = self._by_tokens[tokens] = terms, terms.kernels
        return found

    def _count(self, tokens: int) -> Terms:
        card, network = self.card, self.network
        reduces = network.attention_layers + network.sliding_layers + network.state_layers + network.num_layers
        experts = 0.0
        if network.moe_layers:
            experts = network.moe_layers * kernels.experts_us(
                card, network.expert_format, tokens, network.experts, network.experts_per_token,
                network.weights_per_expert,
            )  # fmt: skip
        pointwise = tokens * network.hidden_size * 16 * network.num_layers / (card.bandwidth * _POINTWISE_SHARE)
        return Terms(
            gemms=sum(self._gemm_us(gemm, tokens) * gemm.count for gemm in network.gemms),
            experts=experts,
            reduce=reduces * kernels.reduce_us(card, network.ranks, tokens * network.hidden_size * 2),
            pointwise=1e6 * pointwise,
        )

    def _gemm_us(self, gemm: Gemm, tokens: int) -> float:
        return kernels.gemm_us(self.card, gemm.weights, tokens, gemm.rows, gemm.columns)

    def _head_us(self, sequences: int) -> float:
        found = self._heads_us.get(sequences)
        if found is None:
            found = self._heads_us[sequences] = self._gemm_us(self.network.lm_head, max(1, sequences))
        return found

    def _decode_attention_us(self, batch: int, context: float) -> float:
        network = self.network
        total = self._attention_us(batch, context) * network.attention_layers
        if network.sliding_layers:
            total += self._attention_us(batch, min(context, network.sliding_window)) * network.sliding_layers
        return total

    def _attention_us(self, batch: int, context: float) -> float:
        network = self.network
        size = 1 if self.cache == "fp8" else 2
        kv_bytes = batch * context * network.kv_heads * network.head_dim * 2 * size
        return kernels.decode_attention_us(self.card, network.head_dim, kv_bytes, context, self.cache)

    def _prefill_us(self, chunks: list[tuple[int, int]]) -> float:
        network, total = self.network, 0.0
        for new, before in chunks:
            if network.attention_layers:
                total += network.attention_layers * self._causal_us(new, before)
            if network.sliding_layers:
                total += network.sliding_layers * self._causal_us(new, min(before, network.sliding_window))
        if network.state_layers and chunks:
            news = [new for new, _ in chunks]
            one = kernels.state_prefill_us(self.card, network.value_heads, sum(news), max(news))
            total += network.state_layers * one
        return total

    def _causal_us(self, new: int, before: int) -> float:
        network = self.network
        return kernels.prefill_attention_us(self.card, network.heads, network.kv_heads, network.head_dim, new, before)
