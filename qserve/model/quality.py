"""What a quantization cost, as figures."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["QuantQuality"]


@dataclass(frozen=True)
class QuantQuality:
    """How far a quantized model is from its 16-bit self, over the positions of a fixed text.

    KL is KL(16 bit ‖ quantized) of the next-token distributions in nats, `mean_kl` over the positions, `worst_kl` the
    largest; `top1_agreement` the share of positions at which both hold the same token most likely.
    """

    scheme: str
    reference: str
    num_tokens: int
    mean_kl: float
    worst_kl: float
    top1_agreement: float
    seconds: float

    def __str__(self) -> str:
        """The line that people read."""
        return (
            f"{self.scheme} against {self.reference} on {self.num_tokens} tokens: KL {self.mean_kl:.4f} nats in the "
            f"mean, {self.worst_kl:.4f} at worst; the same token on top at {self.top1_agreement:.1%} of the positions"
        )
