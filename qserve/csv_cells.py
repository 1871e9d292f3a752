"""Cells of CSV files that a spreadsheet must not take for formulas: what a model or a client wrote is text."""

from __future__ import annotations

from typing import Any

__all__ = ["read_cell", "written_cell"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MARK = "'"


def written_cell(value: Any) -> Any:
    """The value; text that begins like a formula gets an apostrophe before it, which spreadsheets hide."""
    if isinstance(value, str) and value.lstrip(_MARK).startswith(_FORMULA) and not _is_number(value):
        return _MARK + value
    return value


def read_cell(cell: str) -> str:
    """What `written_cell` was given."""
    return cell[1:] if cell.startswith(_MARK) and cell.lstrip(_MARK).startswith(_FORMULA) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
