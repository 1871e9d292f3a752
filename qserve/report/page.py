"""The report as one HTML file: no network, no script, light and dark, on paper and on a phone."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from qserve.charts.figures import NUMERIC, duration, moment, text_of
from qserve.charts.html import draw, stylesheet
from qserve.charts.spec import Chart
from qserve.report.blocks import Code, Figure, Row, Table, Text, Tiles
from qserve.report.facts import RunReport
from qserve.report.sections import sections_of
from qserve.version import __version__

__all__ = ["title_of", "to_html", "when_of"]

_KINDS = {Table: "table", Figure: "figure", Row: "row", Text: "text", Code: "code", Tiles: "tiles"}


def to_html(report: RunReport) -> str:
    """The whole page. Everything in it is escaped, whatever names it holds."""
    run = report.run
    return _template().render(
        title=title_of(report),
        run=run,
        when=when_of(report),
        made=moment(report.made_unix_s),
        version=__version__,
        sections=sections_of(report),
        style=Markup(stylesheet() + _read("page.css")),  # noqa: S704 - ours
    )


def title_of(report: RunReport) -> str:
    """The models that were served, or the training run."""
    served = " and ".join(worker.models[0] for worker in report.run.workers if worker.models)
    trained = next((f"Training run {one.name}" for one in reversed(report.trainings) if one.name), "")
    return served or trained or report.run.id


def when_of(report: RunReport) -> str:
    """When the run began, and how long it ran."""
    run = report.run
    words = {"running": "running for", "ended": "ran for", "died": "died after"}
    return f"{moment(run.started_unix_s)} · {words[run.state]} {duration(run.duration_s)}"


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {"draw": _marked, "text_of": text_of, "numeric": NUMERIC}
    environment.filters["kind"] = lambda block: _KINDS[type(block)]
    return environment.from_string(_read("page.html"))


def _marked(chart: Chart) -> Markup:
    return Markup(draw(chart))  # noqa: S704 - escaped where it was drawn


def _read(name: str) -> str:
    return files("qserve.report").joinpath(name).read_text(encoding="utf-8")
