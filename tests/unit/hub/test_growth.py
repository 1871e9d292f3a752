"""How far a download is, in words."""

from __future__ import annotations

from qserve.hub.growth import Growth
from qserve.units import GIB, MIB


def test_rate_and_time_left_are_of_the_last_seconds() -> None:
    growth = Growth(10 * GIB)
    assert str(growth.add(0.0, 0)) == "0 B of 10.00 GiB"
    assert str(growth.add(1.0, 100 * MIB)) == "100 MiB of 10.00 GiB · 100 MiB/s · 101 s left"
    for second in range(2, 40):
        told = growth.add(float(second), second * 50 * MIB)
    assert str(told) == "1.90 GiB of 10.00 GiB · 50 MiB/s · 2.8 min left"
    assert str(growth.add(55.0, 39 * 50 * MIB)).endswith(" · nothing arrived for 16 s")
    assert str(growth.add(56.0, 11 * GIB)) == "10.00 GiB of 10.00 GiB · verifying"
