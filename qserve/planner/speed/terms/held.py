"""In which format the modules of a packed checkpoint are held: most of them in one, some by name in another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.weight_format import BF16, WeightFormat

__all__ = ["HeldFormats"]


@dataclass(frozen=True)
class HeldFormats:
    """`weights` is the format of most modules, `others` have those of further schemes that the checkpoint mixes in."""

    spec: ModelSpec
    weights: WeightFormat
    others: Mapping[str, WeightFormat] = field(default_factory=dict)

    def of_layers(self, module: str, layers: Iterable[int]) -> Counter[WeightFormat]:
        """How many of the layers hold `module` (self_attn.q_proj) in which format."""
        return Counter(self._of(f"model.layers.{layer}.{module}") for layer in layers)

    def of_experts(self, layers: Iterable[int]) -> WeightFormat:
        """The format of most layers' routed experts."""
        found = self.of_layers("mlp.experts.0.gate_proj", layers).most_common(1)
        return found[0][0] if found else self.weights

    @property
    def of_head(self) -> WeightFormat:
        """16 bit, but where the checkpoint names the head among what it packs."""
        stored = self.spec.quantization
        if stored is None or not stored.is_mixed or self.spec.tie_word_embeddings:
            return BF16
        return self._of("lm_head", is_usual=False)

    def _of(self, module: str, is_usual: bool = True) -> WeightFormat:
        stored = self.spec.quantization
        if stored is None or not stored.is_mixed:
            return self.weights
        how = stored.of_module(module, is_usual)
        if how is None:
            return BF16
        return self.weights if how.scheme == stored.scheme else self.others.get(how.scheme, self.weights)
