"""Figures in large type, and tables that a phone can show."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Any

__all__ = ["probability_of", "table", "tiles"]

_MOST_COLUMNS_OF_A_PHONE = 4


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """Figures in large type with what they are below."""
    inside = "".join(
        f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in figures
    )
    return f'<div class="qs-tiles">{inside}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[Any]], numbers: Sequence[int] = ()) -> str:
    """Rows of plain text; the columns `numbers` stand at the right.

    Where other columns than the first hold text, or there are more columns than a phone is wide, a phone shows each row
    as a block, a name over each cell. That takes away the roles that a browser gives tables, so they are written out.
    """
    is_stacked = len(head) > _MOST_COLUMNS_OF_A_PHONE or any(column not in numbers for column in range(1, len(head)))
    roles = [f' role="{role}"' if is_stacked else "" for role in ("table", "rowgroup", "row", "columnheader", "cell")]
    of_table, of_group, of_row, of_head, of_cell = roles
    kinds = ['class="qs-number"' if column in numbers else "" for column in range(len(head))]
    names = [f' data-head="{html.escape(name)}"' if is_stacked else "" for name in head]
    first = "".join(
        f'<th scope="col"{of_head} {kind}>{html.escape(name)}</th>' for kind, name in zip(kinds, head, strict=True)
    )
    body = "".join(
        f"<tr{of_row}>"
        + "".join(
            f"<td{of_cell}{name} {kind}>{html.escape(str(cell))}</td>"
            for kind, name, cell in zip(kinds, names, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="qs-table{" qs-stacked" if is_stacked else ""}" tabindex="0" role="region" '
        f'aria-label="{html.escape(", ".join(head))}"><table{of_table}>'
        f"<thead{of_group}><tr{of_row}>{first}</tr></thead><tbody{of_group}>{body}</tbody></table></div>"
    )


def probability_of(margin: float) -> float:
    """Bradley and Terry: the probability that the better one is preferred, from the difference of rewards."""
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else 1 - 1 / (1 + math.exp(margin))
