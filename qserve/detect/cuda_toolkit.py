"""The CUDA toolkit of this machine: what FlashInfer and DeepGEMM compile kernels with when vLLM starts.

Wheels of torch bring CUDA's libraries and no compiler. Triton has one of its own, and needs none of this.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qserve.core.release import shown_release

__all__ = ["CudaToolkit", "cuda_toolkit", "with_ninja"]

_USUAL_HOME = Path("/usr/local/cuda")
_RELEASE = re.compile(r"^#define\s+CUDA_VERSION\s+(\d+)", re.MULTILINE)
# "NVCC version must be at least 12.9" stands in the DeepGEMM of vLLM 0.33; FlashInfer asks for it from Blackwell on.
_LEAST_RELEASE = (12, 9)


@dataclass(frozen=True)
class CudaToolkit:
    """What was found in `home`; `release` is (12, 9) of its headers, None where they are not there."""

    home: Path
    has_nvcc: bool
    has_cuobjdump: bool
    has_ninja: bool
    release: tuple[int, int] | None

    @property
    def lacking(self) -> tuple[str, ...]:
        """What is missing to compile, in words; empty where everything is there."""
        found = []
        if not self.has_nvcc:
            found.append("nvcc")
        elif self.release is None:
            found.append(f"the toolkit's headers ({self.home}/include/cuda.h)")
        elif self.release < _LEAST_RELEASE:
            found.append(
                f"CUDA {shown_release(_LEAST_RELEASE)} or later ({self.home} is {shown_release(self.release)})"
            )
        if self.has_nvcc and not self.has_cuobjdump:
            found.append("cuobjdump")
        if not self.has_ninja:
            found.append("ninja")
        return tuple(found)

    @property
    def compiles_deep_gemm(self) -> bool:
        """Whether DeepGEMM's kernels can be compiled, which ninja has no part in."""
        return not set(self.lacking) - {"ninja"}


def cuda_toolkit(environ: Mapping[str, str] = os.environ, usual_home: Path = _USUAL_HOME) -> CudaToolkit:
    """The toolkit that FlashInfer and DeepGEMM would take: $CUDA_HOME, $CUDA_PATH, that of nvcc on the path, the usual.

    Source: flashinfer 0.6 and 0.7 jit/cpp_ext.py, get_cuda_path; deep_gemm 2.8 in vllm 0.33.
    """
    path = environ.get("PATH", os.defpath)
    named = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    on_path = shutil.which("nvcc", path=path)
    home = Path(named) if named else Path(on_path).parent.parent if on_path else usual_home
    programs = str(home / "bin")
    return CudaToolkit(
        home,
        shutil.which("nvcc", path=programs) is not None,
        shutil.which("cuobjdump", path=programs) is not None,
        shutil.which("ninja", path=with_ninja(path)) is not None,
        _release_in(home),
    )


def with_ninja(path: str) -> str:
    """PATH with this Python's own programs behind it: `ninja` of the package, which an engine that was started without
    its environment's `activate` would not find."""
    own = str(Path(sys.executable).parent)
    return path if own in path.split(os.pathsep) else f"{path}{os.pathsep}{own}"


def _release_in(home: Path) -> tuple[int, int] | None:
    try:
        found = _RELEASE.search((home / "include" / "cuda.h").read_text(errors="replace"))
    except OSError:
        return None
    number = int(found[1]) if found else 0
    return (number // 1000, number % 1000 // 10) if number else None
