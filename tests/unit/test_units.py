"""How bytes and counts of parameters are written for people."""

from __future__ import annotations

import pytest

from qserve.units import format_parameters


@pytest.mark.parametrize(
    ("count", "text"),
    [(32_762_123_264, "32.76B"), (596_049_920, "0.60B"), (85_000_000, "85.00M"), (2_021_376, "2.02M"), (0, "0.00M")],
)
def test_a_small_model_has_millions_of_parameters(count: int, text: str) -> None:
    assert format_parameters(count) == text
