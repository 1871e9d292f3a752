"""What a quantization cost, as figures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Distance", "QuantQuality"]


@dataclass(frozen=True)
class Distance:
    """Of two models' next-token distributions, as in `QuantQuality`."""

    mean_kl: float
    worst_kl: float
    top1_agreement: float

    def __str__(self) -> str:
        return f"KL {self.mean_kl:.4f}, {self.worst_kl:.4f} at worst, {self.top1_agreement:.1%} on top"


@dataclass(frozen=True)
class QuantQuality:
    """How far a quantized model is from its 16-bit self, over the positions of a fixed text.

    KL is KL(16 bit ‖ quantized) of the next-token distributions in nats, `mean_kl` over the positions, `worst_kl` the
    largest; `top1_agreement` the share of positions at which both hold the same token most likely. `activations`: where
    they are rounded as well, how far that alone takes the model from itself.
    """

    scheme: str
    reference: str
    num_tokens: int
    mean_kl: float
    worst_kl: float
    top1_agreement: float
    seconds: float
    activations: Distance | None = None

    def __str__(self) -> str:
        """The line that people read."""
        line = (
            f"{self.scheme} against {self.reference} on {self.num_tokens} tokens: KL {self.mean_kl:.4f} nats in the "
            f"mean, {self.worst_kl:.4f} at worst; the same token on top at {self.top1_agreement:.1%} of the positions"
        )
        if self.activations is None:
            return line
        return f"{line}. In it, activations in int8 against exact ones with the same weights: {self.activations}"
