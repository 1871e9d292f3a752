"""Names in the picture of layouts: where there is no room for all of them the ends of the front have theirs."""

from __future__ import annotations

from qserve.report.charts.layouts import draw_layouts
from qserve.report.charts.specs import LayoutPoint, Layouts


def test_the_ends_of_the_front_are_named_where_points_are_crowded() -> None:
    crowd = [LayoutPoint(f"crowd {index}", 20.0 + index, 1000.0 - index, True, False) for index in range(6)]
    ends = [LayoutPoint("most a card", 19.0, 1001.0, True, False), LayoutPoint("quickest", 150.0, 300.0, True, False)]
    chosen = LayoutPoint("chosen", 60.0, 700.0, True, True)
    drawn = str(draw_layouts(Layouts((*crowd, *ends, chosen))))
    wide, narrow = drawn.split("<svg")[1:]
    for name in ("most a card", "quickest", "chosen"):
        assert f">{name}</text>" in wide
    assert ">chosen</text>" in narrow
