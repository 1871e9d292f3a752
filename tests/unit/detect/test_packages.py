"""What is said of installed packages without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.detect.packages import torch_has_cuda

_LINES = "__version__ = '2.13.0'\ndebug = False\ncuda: Optional[str] = {}\nhip: Optional[str] = None\n"


@pytest.mark.parametrize(("line", "has_cuda"), [("'12.8'", True), ('"13.0"', True), ("None", False)])
def test_a_torch_for_cards_is_told_by_its_own_file(line: str, has_cuda: bool, tmp_path: Path) -> None:
    file = tmp_path / "version.py"
    file.write_text(_LINES.format(line))
    assert torch_has_cuda(file) is has_cuda


def test_without_torch_there_is_no_cuda_in_it(tmp_path: Path) -> None:
    assert torch_has_cuda(tmp_path / "version.py") is False
