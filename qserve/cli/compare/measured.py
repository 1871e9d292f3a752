"""What `qserve compare` measured of checkpoints that qserve made, written into their model cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from qserve.cli.compare.steps import Compared
from qserve.evaluation.comparison.compare import Candidate, main_score, verdict
from qserve.units import format_bytes, format_rate

__all__ = ["with_section", "write_measured"]

_CARD = "README.md"
_OF_QSERVE = "- qserve\n"  # among the tags of a card that it wrote


def write_measured(done: Compared, made: Mapping[str, Path]) -> Iterator[Path]:
    """A section in the card of each folder in `made`, by candidates' names, in place of one of the same comparison;
    yields the cards. Cards that others wrote stay as they are."""
    first = done.candidates[0]
    for one in done.candidates:
        card = made[one.quant] / _CARD if one.quant in made else None
        if card is None or not card.is_file() or _OF_QSERVE not in card.read_text():
            continue
        heading = (
            f"Measured by qserve compare on {done.title.rpartition(' on ')[2]}, {one.about.get('engine', 'qserve')}"
        )
        card.write_text(with_section(card.read_text(), heading, _rows(one, first)))
        yield card


def _rows(one: Candidate, first: Candidate) -> dict[str, tuple[str, str]]:
    before, after = main_score(first.result), main_score(one.result)
    return {
        "": (first.quant, one.quant),
        "weights in memory": (format_bytes(first.held_bytes), format_bytes(one.held_bytes)),
        "tokens/s": (format_rate(first.load.tokens_per_s), format_rate(one.load.tokens_per_s)),
        **{task: (f"{100 * before[task]:.1f} %", f"{100 * after[task]:.1f} %") for task in before if task in after},
        "verdict": ("", verdict(one, first)),
    }


def with_section(page: str, heading: str, rows: Mapping[str, tuple[str, str]]) -> str:
    """The page with the section at its end; an older one of that heading is gone."""
    kept = [part for part in page.split("\n## ") if not part.startswith(f"{heading}\n")]
    (name, columns), *others = rows.items()
    lines = [f"| {name} | {' | '.join(columns)} |", "|---|---|---|"]
    lines += [f"| {name} | {' | '.join(columns)} |" for name, columns in others]
    return "\n## ".join([*(part.rstrip("\n") + "\n" for part in kept), f"{heading}\n\n" + "\n".join(lines) + "\n"])
