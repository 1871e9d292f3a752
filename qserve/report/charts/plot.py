"""The frame of a plot: numbers at the left and below in HTML, between them an SVG that stretches.

Within the SVG x and y go from 0 to 1000 and from 0 to 100 (down), whatever its size; strokes keep their width. A dot is
a line of no length with round ends, which no stretching makes an ellipse.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

__all__ = ["HEIGHT", "WIDTH", "dot", "frame", "legend"]

WIDTH = 1000
HEIGHT = 100
_FRAME = Markup(
    '<div class="plot {}"><div class="ys">{}</div>'
    '<svg viewBox="0 0 1000 100" preserveAspectRatio="none" aria-hidden="true">{}{}</svg>'
    '<div class="over">{}</div><div class="xs">{}</div></div>'
)
_Y = Markup('<span style="bottom:{:.2f}%">{}</span>')
_X = Markup('<span style="left:{:.2f}%">{}</span>')
_LAST_X = Markup('<span class="last">{}</span>')
_AT_THE_END = 0.95
_GRID = Markup('<path class="grid" d="M0 {0:.2f}H1000"/>')
_KEY = Markup('<span class="key"><i class="{}c{}"></i>{}</span>')
_DOT = Markup('<path class="dot s{}" d="M{:.2f} {:.2f}h0"><title>{}</title></path>')


def frame(
    drawn: Iterable[Markup],
    y_labels: Sequence[tuple[float, str]],
    x_labels: Sequence[tuple[float, str]],
    over: Iterable[Markup] = (),
    kind: str = "",
) -> Markup:
    """`drawn` in a grid; labels at shares of height (from below) and width; `over` is HTML laid over the drawing."""
    return _FRAME.format(
        kind,
        Markup().join(_Y.format(100 * share, text) for share, text in y_labels),
        Markup().join(_GRID.format(HEIGHT * (1 - share)) for share, _ in y_labels),
        Markup().join(drawn),
        Markup().join(over),
        Markup().join(
            _LAST_X.format(text) if share > _AT_THE_END else _X.format(100 * share, text) for share, text in x_labels
        ),
    )


def dot(colour: str, x: float, y: float, title: str) -> Markup:
    """A dot at x, y of the SVG, with words for who points at it."""
    return _DOT.format(colour, x, y, title)


def legend(keys: Iterable[tuple[str, str, str]]) -> Markup:
    """A class for the key (`faint `, or none), its colour, and what it is for."""
    return Markup('<div class="legend">{}</div>').format(Markup().join(_KEY.format(*key) for key in keys))
