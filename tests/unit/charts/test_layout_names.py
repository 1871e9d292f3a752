"""Names in the picture of layouts: where there is no room for all of them the ends of the front have theirs."""

from __future__ import annotations

from qserve.charts.html import draw
from qserve.charts.spec import Point, Scatter


def test_the_ends_of_the_front_are_named_where_points_are_crowded() -> None:
    crowd = [Point(f"crowd {index}", 20.0 + index, 1000.0 - index, True, False) for index in range(6)]
    ends = [Point("most a card", 19.0, 1001.0, True, False), Point("quickest", 150.0, 300.0, True, False)]
    chosen = Point("chosen", 60.0, 700.0, True, True)
    points = (*crowd, *ends, chosen)
    drawn = str(draw(Scatter(points, "user", "card", "number", "number", ("front", "behind", "chosen"))))
    wide, narrow = drawn.split("<svg")[1:]
    for name in ("most a card", "quickest", "chosen"):
        assert f">{name}</text>" in wide
    assert ">chosen</text>" in narrow
