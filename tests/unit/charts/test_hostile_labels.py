"""Whatever a checkpoint or a user calls something, no medium takes it for markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import get_args

import pytest

from qserve.charts.html import draw, figure
from qserve.charts.spec import (
    Bar,
    Chart,
    Histogram,
    Interval,
    Intervals,
    Line,
    Lines,
    Point,
    Scatter,
    Segment,
    SignedBars,
    StackedBars,
)
from qserve.charts.svg import svg_file

EVIL = "\"'><img src=x onerror=alert(1)>&amp;</svg>"
POINT = Point(EVIL, 1.0, 0.5, True, is_chosen=True, text=EVIL, stderr=0.1)
TAGS = {"div", "span", "i", "figure", "figcaption", "svg", "path", "rect", "circle", "polyline", "text", "title"}
LINES = (Line(EVIL, "1", (1.0, 2.0)), Line(EVIL, "2", (2.0, None)))
SPECS: list[Chart] = [
    StackedBars((Bar(EVIL, (Segment(EVIL, 2.0, EVIL, "1"),), EVIL, total=1.0),)),
    SignedBars(((EVIL, -1.0),), 0, -1.0, 1.0),
    Lines((1.0, 2.0), LINES, "ms", 1.0, EVIL, text=lambda _: EVIL),
    Histogram((EVIL, EVIL), (1.0,), "1", EVIL, ((EVIL, 0.5),), ((0.5, EVIL),)),
    Intervals((Interval(EVIL, 0.5, 0.1, EVIL),), 0.0, 1.0),
    Scatter((POINT,), EVIL, EVIL, "number", "share", (EVIL, EVIL, EVIL), EVIL, names_all=True),
]


def texts_of(drawn: str) -> str:
    """All that is said in well-formed markup whose elements are those of charts."""
    tree = ET.fromstring(drawn)
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert tags <= TAGS, tags
    for element in tree.iter():
        assert not any(name.startswith("on") for name in element.attrib)
    return " ".join([*tree.itertext(), *(value for one in tree.iter() for value in one.attrib.values())])


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)
def test_labels_stay_text_in_a_page(spec: Chart) -> None:
    for drawn in (draw(spec), figure(EVIL, spec, EVIL)):
        assert EVIL in texts_of(drawn) and "<img" not in drawn


def test_labels_stay_text_in_a_file() -> None:
    assert EVIL in texts_of(svg_file(SPECS[-1], EVIL))  # type: ignore[arg-type]


def test_every_spec_is_tried() -> None:
    assert {type(spec) for spec in SPECS} == set(get_args(Chart))
