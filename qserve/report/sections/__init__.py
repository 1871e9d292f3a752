"""One file for each part of a report: from the facts to blocks, or to nothing where there are no facts."""

from __future__ import annotations

from collections.abc import Callable

from qserve.report.blocks import Section, Text
from qserve.report.facts import RunReport
from qserve.report.sections.bench import bench
from qserve.report.sections.comparison import comparison
from qserve.report.sections.evals import evals
from qserve.report.sections.faults import faults
from qserve.report.sections.latency import latency
from qserve.report.sections.layouts import layouts
from qserve.report.sections.memory import memory
from qserve.report.sections.next_step import next_step
from qserve.report.sections.overview import overview
from qserve.report.sections.reproduce import reproduce
from qserve.report.sections.reward import reward
from qserve.report.sections.reward_quality import reward_quality
from qserve.report.sections.start import start
from qserve.report.sections.traffic import traffic
from qserve.report.sections.training import training
from qserve.version import __version__

__all__ = ["sections_of"]

_ORDER: tuple[Callable[[RunReport], Section | None], ...] = (
    overview,
    training,
    memory,
    latency,
    layouts,
    start,
    traffic,
    reward,
    reward_quality,
    evals,
    comparison,
    bench,
    faults,
    reproduce,
    next_step,
)


def sections_of(report: RunReport) -> tuple[Section, ...]:
    """In the order of reading; those without facts are left out."""
    return tuple(section for make in _ORDER if (section := _made(make, report)) is not None)


def _made(make: Callable[[RunReport], Section | None], report: RunReport) -> Section | None:
    """A document that another release stored in another shape costs its own section, not the report."""
    try:
        return make(report)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"qserve {__version__} can't read the record of this section ({type(error).__name__}: {error})."
        return Section(make.__name__, make.__name__.capitalize(), (Text(why, is_warning=True),))
