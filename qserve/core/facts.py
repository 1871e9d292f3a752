"""The tables of configs/: models, siblings, cards. TOML, so that the standard library reads them."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from qserve.errors import UsageError

__all__ = ["find_file", "folders", "load"]

_PACKAGE = Path(__file__).parent.parent
# A wheel carries the tables inside the package, a checkout beside it.
_FOLDERS = (_PACKAGE / "_configs", _PACKAGE.parent / "configs")


def folders() -> tuple[Path, ...]:
    """Where tables and deployments are looked for: the installation's folders that exist, then the user's own."""
    users = os.environ.get("QSERVE_CONFIGS")
    own = tuple(folder for folder in _FOLDERS if folder.is_dir())
    return (*own, Path(users).expanduser()) if users else own


def find_file(name: str) -> Path:
    """A file below configs/ by its relative name; a user's own of that name goes first.

    Raises FileNotFoundError where there is none.
    """
    found = next((path for path in (folder / name for folder in reversed(folders())) if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(f"{name} is in none of {', '.join(map(str, folders()))}")
    return found


def load(table: str) -> dict[str, Any]:
    """The parsed table configs/<table>.toml, with the rows of $QSERVE_CONFIGS/<table>.toml in place of its own.

    Read once per folder; the caller must not change it. Raises FileNotFoundError where the installation lacks the
    file (a packaging mistake), UsageError for a user's file that is not valid TOML.
    """
    return _merged(table, os.environ.get("QSERVE_CONFIGS"))


@cache
def _merged(table: str, user_folder: str | None) -> dict[str, Any]:
    own = _read(
        next((path for path in (folder / f"{table}.toml" for folder in _FOLDERS) if path.is_file()), None), table
    )
    user_file = Path(user_folder).expanduser() / f"{table}.toml" if user_folder else None
    if user_file is None or not user_file.is_file():
        return own
    users = _read(user_file, table)
    return {**own, **{key: _over(own.get(key), value) for key, value in users.items()}}


def _over(own: Any, users: Any) -> Any:
    return {**own, **users} if isinstance(own, dict) and isinstance(users, dict) else users


def _read(path: Path | None, table: str) -> dict[str, Any]:
    if path is None:
        raise FileNotFoundError(f"the table {table}.toml is in none of {', '.join(map(str, _FOLDERS))}")
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML: {error}; correct it, or unset QSERVE_CONFIGS") from None
