"""How far a download is, as a bar that fits the terminal."""

from __future__ import annotations

from rich.text import Text

from qserve.hub.growth import Arrived

__all__ = ["bar_of"]

_WIDEST, _NARROWEST = 40, 10
_LINE, _END = "\N{BOX DRAWINGS HEAVY HORIZONTAL}", "\N{BOX DRAWINGS HEAVY LEFT}"


def bar_of(name: str, arrived: Arrived, width: int) -> Text:
    """Two lines: what is fetched; then a bar, the percentage and the words of it. `width`: of both, in characters."""
    told = f" {_percent(arrived.share)} · {arrived}"
    columns = min(max(width - len(told), _NARROWEST), _WIDEST)
    full = int(columns * arrived.share)
    end = _END if full < columns else ""
    rest = _LINE * (columns - full - len(end))
    bar = (_LINE * full + end, "bar.complete"), (rest, "bar.back")
    return Text.assemble(f"{name}\n", *bar, told, no_wrap=True, overflow="ellipsis")


def _percent(share: float) -> str:
    """Rounded down: 100 % is all of it."""
    return f"{int(100 * share):2d} %"
