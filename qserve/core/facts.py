"""The tables of configs/: models, siblings, cards. TOML, so that the standard library reads them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["load"]

_PACKAGE = Path(__file__).parent.parent
# A wheel carries the tables inside the package, a checkout beside it.
_FOLDERS = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


@cache
def load(table: str) -> dict[str, Any]:
    """The parsed table configs/<table>.toml; read once. The caller must not change it.

    Raises FileNotFoundError where the installation lacks the file: a packaging mistake, not a user's.
    """
    for folder in _FOLDERS:
        path = folder / f"{table}.toml"
        if path.is_file():
            return tomllib.loads(path.read_text())
    raise FileNotFoundError(f"the table {table}.toml is in none of {', '.join(str(folder) for folder in _FOLDERS)}")
