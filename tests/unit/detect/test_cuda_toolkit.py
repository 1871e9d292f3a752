"""The toolkit that compiles kernels: found as FlashInfer and DeepGEMM find it, or what of it is missing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qserve.detect.cuda_toolkit import cuda_toolkit, with_ninja

PROGRAMS = ("nvcc", "cuobjdump")


def toolkit_in(home: Path, number: int = 13000, programs: tuple[str, ...] = PROGRAMS) -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    for name in programs:
        _program(home / "bin" / name)
    (home / "include" / "cuda.h").write_text(f"#ifndef A\n#define CUDA_VERSION {number}\n#endif\n")
    return home


def _program(file: Path) -> None:
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)


@pytest.fixture
def ninja(tmp_path: Path) -> str:
    _program(tmp_path / "ninja")
    return str(tmp_path)


def test_the_named_toolkit_goes_before_the_path_and_that_before_the_usual(tmp_path: Path, ninja: str) -> None:
    named, on_path, usual = (toolkit_in(tmp_path / name) for name in ("named", "on_path", "usual"))
    path = f"{ninja}:{on_path}/bin"
    assert cuda_toolkit({"CUDA_HOME": str(named), "PATH": path}, usual).home == named
    assert cuda_toolkit({"CUDA_PATH": str(named), "PATH": path}, usual).home == named
    assert cuda_toolkit({"PATH": path}, usual).home == on_path
    found = cuda_toolkit({"PATH": ninja}, usual)
    assert (found.home, found.release, found.lacking, found.compiles_deep_gemm) == (usual, (13, 0), (), True)


def test_what_is_missing_is_named(tmp_path: Path, ninja: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = cuda_toolkit({"PATH": ninja}, tmp_path / "nowhere")
    assert nowhere.lacking == ("nvcc",) and not nowhere.compiles_deep_gemm
    old = cuda_toolkit({"PATH": ninja, "CUDA_HOME": str(toolkit_in(tmp_path / "old", 12080))})
    assert old.lacking == (f"CUDA 12.9 or later ({tmp_path}/old is 12.8)",) and not old.compiles_deep_gemm
    slim = cuda_toolkit({"PATH": ninja, "CUDA_HOME": str(toolkit_in(tmp_path / "slim", programs=("nvcc",)))})
    assert slim.lacking == ("cuobjdump",) and not slim.compiles_deep_gemm
    bare = toolkit_in(tmp_path / "bare")
    (bare / "include" / "cuda.h").unlink()
    assert cuda_toolkit({"PATH": ninja, "CUDA_HOME": str(bare)}).lacking == (
        f"the toolkit's headers ({bare}/include/cuda.h)",
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))
    without = cuda_toolkit({"PATH": "", "CUDA_HOME": str(toolkit_in(tmp_path / "whole"))})
    assert without.lacking == ("ninja",) and without.compiles_deep_gemm


def test_ninja_of_this_environment_is_found_without_its_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    assert with_ninja("/bin") == f"/bin{os.pathsep}/venv/bin"
    assert with_ninja("/venv/bin:/bin") == "/venv/bin:/bin"
