"""How long one step of the engine takes: the kernels of one rank, the engine's own time beside them."""

from __future__ import annotations

from dataclasses import dataclass, field

from qserve.planner.speed.terms import kernels
from qserve.planner.speed.terms.card import UNFUSED, CardSpeed
from qserve.planner.speed.terms.engine_costs import EngineCosts
from qserve.planner.speed.terms.network import RankNetwork

__all__ = ["SHORTLIST_SHARE", "StepTimes", "Terms"]

SHORTLIST_SHARE = 0.64
"""Of a bf16 head's time, where a copy in int8 is read first: half of the bytes, the panels that it leaves, and finding
them. Of 9.4 to 10.8 ms of a Qwen3-0.6B's head 6.1 to 6.8 (docs/results/cpu.md)."""
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


@dataclass
class StepTimes:
    """Times of steps of one replica. What depends on the number of tokens alone is computed once for each number.

    `cache` is the KV cache's format in the kernel tables (bf16, fp8). `stages` of a pipeline take turns: a step runs
    through all of them, and each works on its part of the running requests meanwhile. `shortlist_rows`: up to so many
    sequences a copy of the head in int8 says which tokens can be the likeliest (greedy, or drawn by top-k).
    """

    card: CardSpeed
    network: RankNetwork
    costs: EngineCosts
    cache: str = "bf16"
    stages: int = 1
    shortlist_rows: int = 0
    _by_tokens: dict[int, float] = field(default_factory=dict)
    """By tokens of a step: microseconds of what depends on them alone."""
    _by_batch: dict[int, float] = field(default_factory=dict)
    """By sequences of a decode step: microseconds of all but attention."""
    _heads_us: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        card, costs, network = self.card, self.costs, self.network
        self._dispatch_us = (
            costs.dispatch_layer_us * network.num_layers
            + costs.dispatch_moe_us * network.moe_layers
            + costs.dispatch_state_us * network.state_layers
        )
        self._graph_tokens, self._replay_us = costs.graph_tokens, self._dispatch_us * costs.graph_share
        self._layers_us = costs.layer_us * network.num_layers
        self._step_us, self._request_us, self._prefill_factor = costs.step_us, costs.request_us, costs.prefill_factor
        self._gemms = [
            (kernels.gemm_form(card, gemm.weights, gemm.rows, gemm.columns), gemm.count) for gemm in network.gemms
        ]
        head = network.lm_head
        self._head = kernels.gemm_form(card, head.weights, head.rows, head.columns)
        bytes_per_token = network.kv_heads * network.head_dim * 2 * (1 if self.cache == "fp8" else 2)
        self._attention_layers, self._sliding_layers = network.attention_layers, network.sliding_layers
        self._state_layers = network.state_layers
        self._decode_us = kernels.decode_attention_form(card, network.head_dim, bytes_per_token, self.cache).us
        share = card.kernels.get(UNFUSED, (0.0,))[0]
        self._unfused = kernels.unfused_form(card, network.unfused_bytes, share)
        self._is_unfused = bool(self._unfused.num_weights)
        self._prefill_us = kernels.prefill_attention_form(card, network.heads, network.kv_heads, network.head_dim).us

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of a step that takes one token of `batch` sequences of `context` tokens in the mean."""
        if self.stages > 1:
            batch = -(-batch // self.stages)
        rest = self._by_batch.get(batch)
        if rest is None:
            states = self._states_us(batch)
            rest = self._of_tokens_us(batch) + self._head_us(batch) + states + self.engine_us(batch)
            self._by_batch[batch] = rest
        attention = self._decode_us(batch, context) * self._attention_layers
        if self._sliding_layers:
            attention += self._sliding_us(batch, context)
        return (rest + attention) / 1e6

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        """Seconds of a step with prompts in it: (new tokens, tokens before them) of each, and `batch` decodes.

        Called for every prompt of a simulation: what was computed before is looked up here, without a call.
        """
        if len(chunks) == 1 and not self._sliding_layers:
            ((new, before),) = chunks
            attention = self._prefill_us(new, before) * self._attention_layers
        else:
            new, attention = self._prefill_attention_us(chunks)
        sequences, tokens = batch + len(chunks), batch + new
        if tokens > 512:
            tokens = -(-tokens // 32) * 32
        of_tokens, head = self._by_tokens.get(tokens), self._heads_us.get(sequences)
        if of_tokens is None:
            of_tokens = self._of_tokens_us(tokens)
        if head is None:
            head = self._head_us(sequences)
        kernel = of_tokens + head + attention
        if self._is_unfused:
            kernel += self._unfused.us(new)
        if self._state_layers and chunks:
            kernel += self._prefill_states_us(new, chunks)
        if batch:
            decode = self._decode_us(batch, context) * self._attention_layers
            kernel += decode + self._sliding_us(batch, context) if self._sliding_layers else decode
        busy = kernel * self._prefill_factor + self._layers_us
        launches = self._replay_us if tokens <= self._graph_tokens else self._dispatch_us
        if busy < launches:
            busy = launches
        return (busy + self._step_us + self._request_us * sequences) / 1e6

    def decode_terms(self, batch: int, context: float) -> Terms:
        """The decode step, term by term, without what was learned."""
        gemms, experts, reduce, pointwise = self._kernels_us(batch)
        return Terms(
            gemms=gemms,
            experts=experts,
            attention=self._decode_attention_us(batch, context),
            states=self._states_us(batch),
            reduce=reduce,
            lm_head=self._head_us(batch),
            pointwise=pointwise,
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

    def _of_tokens_us(self, tokens: int) -> float:
        """What depends on the tokens of a step alone; above 512 they are rounded to 32."""
        tokens = tokens if tokens <= 512 else -(-tokens // 32) * 32
        found = self._by_tokens.get(tokens)
        if found is None:
            found = self._by_tokens[tokens] = sum(self._kernels_us(tokens))
        return found

    def _kernels_us(self, tokens: int) -> tuple[float, float, float, float]:
        """Products, experts, all-reduce, and what goes over activations element by element."""
        card, network = self.card, self.network
        experts = 0.0
        if network.moe_layers:
            experts = network.moe_layers * kernels.experts_us(
                card,
                network.expert_format,
                tokens,
                network.experts,
                network.experts_per_token,
                network.weights_per_expert,
            )
        gemms = 0.0
        for form, count in self._gemms:
            gemms += form.us(tokens) * count
        reduce = 0.0
        if network.ranks > 1:
            reduces = network.attention_layers + network.sliding_layers + network.state_layers + network.num_layers
            reduce = reduces * kernels.reduce_us(card, network.ranks, tokens * network.hidden_size * 2)
        width = network.hidden_size * network.streams
        pointwise = tokens * width * 16 * network.num_layers / (card.bandwidth * _POINTWISE_SHARE)
        return gemms, experts, reduce, 1e6 * pointwise

    def _head_us(self, sequences: int) -> float:
        found = self._heads_us.get(sequences)
        if found is None:
            share = SHORTLIST_SHARE if sequences <= self.shortlist_rows else 1.0
            found = self._heads_us[sequences] = share * self._head.us(max(1, sequences))
        return found

    def _states_us(self, batch: int) -> float:
        network = self.network
        if not network.state_layers:
            return 0.0
        return network.state_layers * kernels.state_decode_us(self.card, network.value_heads, batch)

    def _decode_attention_us(self, batch: int, context: float) -> float:
        total = self._decode_us(batch, context) * self._attention_layers
        if self._sliding_layers:
            total += self._sliding_us(batch, context)
        return total

    def _sliding_us(self, batch: int, context: float) -> float:
        return self._decode_us(batch, min(context, self.network.sliding_window)) * self._sliding_layers

    def _prefill_attention_us(self, chunks: list[tuple[int, int]]) -> tuple[int, float]:
        """New tokens of all chunks, and their attention."""
        tokens, total, us = 0, 0.0, self._prefill_us
        layers, sliding = self._attention_layers, self._sliding_layers
        for new, before in chunks:
            tokens += new
            total += us(new, before) * layers
            if sliding:
                total += us(new, min(before, self.network.sliding_window)) * sliding
        return tokens, total

    def _prefill_states_us(self, new: int, chunks: list[tuple[int, int]]) -> float:
        network, longest = self.network, max(count for count, _ in chunks)
        return network.state_layers * kernels.state_prefill_us(self.card, network.value_heads, new, longest)
