"""Charts: round numbers, true proportions, gaps where nobody asked."""

from __future__ import annotations

import itertools
import re

import pytest

from qserve.charts.figures import duration, mark_of, text_of
from qserve.charts.html import draw
from qserve.charts.scale import clock_step, nice_step, ticks
from qserve.charts.spec import Bar, Interval, Intervals, Line, Lines, Point, Scatter, Segment, StackedBars
from qserve.report.sections.traffic import latency_histogram


def quantizations(points: tuple[Point, ...]) -> Scatter:
    return Scatter(points, "weights", "accuracy", "bytes", "share", names_all=True)


def layouts(points: tuple[Point, ...]) -> Scatter:
    return Scatter(points, "of one user", "of one card", "number", "number", ("front", "behind", "chosen"))


@pytest.mark.parametrize("high", [1e-6, 0.03, 0.9, 1.0, 3, 7.5, 99, 101, 12345, 3e9])
def test_ticks_begin_at_nothing_reach_the_top_and_are_few(high):
    marks = ticks(high)
    assert marks[0] == 0
    assert marks[-1] >= high * (1 - 1e-6)
    assert 2 <= len(marks) <= 6
    assert marks[-1] <= 2.6 * high


def test_steps_are_those_that_people_count_in():
    assert [nice_step(span, 4) for span in (4, 7, 10, 18, 30)] == [1, 2, 2.5, 5, 10]
    assert ticks(0.0) == (0.0, 0.25, 0.5, 0.75, 1.0)
    assert [clock_step(span, 5) for span in (4, 300, 3600, 86400)] == [1, 60, 900, 21600]


@pytest.mark.parametrize(("highest", "kind", "smallest"), [(1, "count", 1.0), (3, "count", 1.0), (0.2, "rate", 0.0)])
def test_no_two_marks_of_an_axis_read_the_same(highest, kind, smallest):
    marks = [mark_of(mark, kind) for mark in ticks(highest, smallest=smallest)]
    assert len(marks) == len(set(marks)) > 1


def test_segments_have_widths_in_proportion():
    bars = StackedBars(
        (Bar("a", (Segment("x", 1, "1", "1"), Segment("y", 3, "3", "2"), Segment("z", 0, "0", "3"))),), 8
    )
    drawn = str(draw(bars))
    assert re.findall(r"width:([\d.]+)%", drawn) == ["12.500", "37.500"]
    assert "z" not in re.findall(r"</i>(\w)</span>", drawn), "what is nowhere needs no place in the legend"


def test_a_line_breaks_where_there_are_no_points():
    lines = Lines((0.0, 60.0, 120.0, 600.0), (Line("x", "1", (1.0, 2.0, 1.0, 2.0)),), "ms", 60.0)
    path = re.search(r'class="line s1" d="([^"]+)"', str(draw(lines)))[1]
    assert path.count("M") == 2 and path.count("L") == 2
    assert path.startswith("M0.0 50.00")


def test_a_share_ends_at_a_hundred_percent_and_steps_are_counted():
    drawn = str(draw(Lines((1.0, 60.0), (Line("x", "1", (0.2, 1.0)),), "share", 60.0, "step")))
    assert re.findall(r">([\d.]+) %<", drawn) == ["25", "50", "75", "100"]
    assert re.findall(r">(step [\d,]+|[\d,]+)</span></div>|left:[\d.]+%\">(step [\d,]+)", drawn)[0][1] == "step 20"


@pytest.mark.parametrize("span_s", [3, 59, 601, 7200, 90_000, 180_000, 400_000, 3_000_000])
def test_labels_of_a_time_axis_have_room_on_a_phone(span_s):
    drawn = str(draw(Lines((1.795e9, 1.795e9 + span_s), (Line("x", "1", (1.0, 2.0)),), "ms", float(span_s))))
    labels = re.findall(r"<span[^>]*>([^<]*)</span>", drawn.partition('class="xs"')[2])
    assert 1 <= len(labels) <= 6 and sum(7 * len(label) for label in labels) < 290


def test_one_point_alone_can_be_drawn():
    drawn = str(draw(Lines((5.0,), (Line("x", "1", (0.0,)),), "count", 10.0)))
    assert "nan" not in drawn and "inf" not in drawn


def test_columns_stand_in_proportion_and_percentiles_where_they_are():
    chart = latency_histogram(10.0, (0, 5, 10, 0), "1", (("p50", 20.0), ("p99", 500.0)))
    drawn = str(draw(chart))
    heights = [float(one) for one in re.findall(r'height="([\d.]+)"', drawn)]
    assert len(heights) == 2 and heights[1] == pytest.approx(2 * heights[0])
    assert 'd="M500.00 0V100"' in drawn
    assert "p99" not in drawn, "it lies outside"


def test_a_column_of_many_requests_is_told_exactly():
    drawn = draw(latency_histogram(10.0, (1_234_567,), "1"))
    assert ": 1,234,567 requests</title>" in drawn


def test_names_of_marks_are_on_lines_of_their_own_however_near_the_marks_are():
    chart = latency_histogram(10.0, (0, 5, 10, 0), "1", (("p50", 20.0), ("p90", 20.1)))
    assert re.findall(r"top:([\d.]+)rem", str(draw(chart))) == ["0.0", "0.95"]


def test_an_interval_stays_within_its_scale():
    drawn = str(draw(Intervals((Interval("t", 0.99, 0.05, "99 %"),), 0.0, 1.0)))
    assert "left:94.000%;width:6.000%" in drawn
    assert "left:99.000%" in drawn


def test_the_best_points_are_joined_and_the_beaten_are_grey():
    points = (
        Point("bf16", 4e6, 0.98, True, stderr=0.01, size=1),
        Point("int8", 2e6, 0.97, True, stderr=0.01, size=0.5),
        Point("nf4", 3e6, 0.9, False, size=0.2),
    )
    drawn = str(draw(quantizations(points)))
    for wide_or_narrow in drawn.split("<svg")[1:]:
        small, large = re.search(r'points="([^"]+)"', wide_or_narrow)[1].split()
        assert float(small.split(",")[0]) < float(large.split(",")[0]), "two points, from small to large"
        assert wide_or_narrow.count('class="point behind"') == 1


def test_names_of_points_lie_on_no_other_name_and_no_point():
    names = ("bf16", "fp8", "int8", "bnb-nf4")
    drawn = str(draw(quantizations(tuple(Point(one, 2e6, 0.97, True, size=1) for one in names))))
    for wide_or_narrow in drawn.split("<svg")[1:]:
        places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]* class="name"', wide_or_narrow)
        assert len(places) == len(set(places)) == len(names)


def test_one_point_of_full_accuracy_needs_no_room_above_a_hundred_percent():
    drawn = str(draw(quantizations((Point("a", 1e6, 1.0, True, size=1),))))
    assert "100 %" in drawn and "nan" not in drawn


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "ms", "–"),
        (1234567, "count", "1.2 million"),
        (32762123264, "parameters", "32.76B"),
        (12.345, "ms", "12.3 ms"),
        (1.2345, "ms", "1.23 ms"),
        (2345.6, "ms", "2.35 s"),
        (23456.0, "ms", "23.5 s"),
        (0.123, "share", "12.3 %"),
        (-0.5, "change", "−50.0 %"),
        (0.0, "change", "+0.0 %"),
        (3 * 1024**2, "bytes", "3 MiB"),
        ("x", "bytes", "x"),
        (0.98765, "number", "0.9877"),
        (1_700_000_000, "time", "2023-11-14 22:13:20 UTC"),
    ],
)
def test_values_as_people_read_them(value, kind, text):
    assert text_of(value, kind) == text


def test_durations_and_marks():
    assert [duration(one) for one in (3.21, 61, 3700, 90000)] == ["3.2 s", "1 min 1 s", "1 h 1 min", "1 d 1 h"]
    assert [mark_of(one, "ms") for one in (0.0, 20.0, 2.5)] == ["0", "20 ms", "2.50 ms"]
    assert mark_of(10.0, "rate") == "10/s"


def test_layouts_that_nothing_beats_are_joined_and_named_and_the_chosen_has_a_ring():
    points = (
        Point("fast <b>", 100.0, 500.0, True, False),
        Point("frugal", 25.0, 1500.0, True, False),
        Point("taken", 60.0, 400.0, False, True),
        Point("beaten", 50.0, 300.0, False, False),
    )
    drawn = str(draw(layouts(points)))
    for joined in re.findall(r'points="([^"]+)"', drawn):
        assert len(joined.split()) == 2, "the front alone"
    assert "fast &lt;b&gt;</text>" in drawn and "<b>" not in drawn
    assert "beaten</text>" not in drawn and "beaten:" in drawn, "who points at it reads its name"
    assert drawn.count('r="8"') == drawn.count("<svg") == 2, "for a wide and for a narrow place"


def test_names_of_layouts_lie_on_no_point_no_line_and_no_other_name():
    """Of a crowded front; a name without room is left out, that of the chosen layout never."""
    front = [Point(f"awq, {i} × TP {i} ({i} cards)", 100.0 + 9 * i, 900.0 - 40 * i, True, False) for i in range(9)]
    chosen = Point("bf16, 2 × TP 4 (8 cards)", 140.0, 700.0, False, True)
    wide, narrow = str(draw(layouts((*front, chosen)))).split("<svg")[1:]
    for drawn, fewest in ((wide, 3), (narrow, 1)):
        named = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*cards\))<', drawn)
        assert chosen.label in {name for _, _, name in named}
        assert len(named) >= fewest
        boxes = [(float(x), float(y) - 10, float(x) + 6.7 * len(name), float(y)) for x, y, name in named]
        points = [tuple(map(float, one)) for one in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="[58]"', drawn)]
        (front_line,) = re.findall(r'<polyline[^>]* points="([^"]+)"', drawn)
        corners = [tuple(map(float, one.split(","))) for one in front_line.split()]
        stroke = [
            (x + (after_x - x) * step / 50, y + (after_y - y) * step / 50)
            for (x, y), (after_x, after_y) in itertools.pairwise(corners)
            for step in range(51)
        ]
        for number, (left, top, right, bottom) in enumerate(boxes):
            assert not any(left < x < right and top < y < bottom for x, y in (*points, *stroke))
            assert min(abs(x - (left + right) / 2) - (right - left) / 2 for x, _ in points) < 13, "next to a point"
            assert not any(
                left < box[2] and box[0] < right and top < box[3] and box[1] < bottom for box in boxes[number + 1 :]
            )
