"""Names of lm-eval's tasks, read from its YAML files' text: a misspelt one is refused before lm-eval is imported.

lm-eval's own index parses 14,000 files, 20 s; reading which names they hold takes one. The names found here are a
superset (strings of other keys may be among them), so what is not among them is unknown for certain.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from qserve.errors import UsageError
from qserve.evaluation.suites import task_folders

__all__ = ["check_names", "written_names"]

_NAMED = re.compile(rb"""^[ \t-]*["']?(?:task|group|tag|task_list)["']?[ \t]*:[ \t]*(\S.*)$""", re.MULTILINE)
_ITEM = re.compile(rb"^[ \t]*-[ \t]+([^:\n]+)$", re.MULTILINE)
_WILDCARDS = set("*?[")


def check_names(names: Iterable[str], own: Iterable[Path] = ()) -> None:
    """Raises UsageError, with near matches, for a name that no file of lm-eval, of ours or in the folders `own` holds.

    Names with wildcards, and all of them where lm-eval is not installed, are left to lm-eval.
    """
    root = _package_folder()
    plain = [name for name in names if not set(name) & _WILDCARDS]
    if root is None or not plain:
        return
    known = written_names([*task_folders(), *own])  # ours first: a suite without a network asks for nothing else
    if all(name in known for name in plain):
        return
    known |= written_names([root / "tasks"])
    for name in plain:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=4, cutoff=0.6)
            close = f"near matches: {', '.join(near)}" if near else "`lm_eval ls tasks` lists them"
            raise UsageError(
                f"--tasks {name[:200]}: lm-eval has no task of that name; {close}. --suite offline has tasks that need "
                "no network"
            )


def _package_folder() -> Path | None:
    found = importlib.util.find_spec("lm_eval")
    return Path(found.origin).parent if found is not None and found.origin else None


def written_names(folders: Iterable[Path]) -> set[str]:
    """Every word that stands where a task's, a group's or a tag's name can."""
    return {name for folder in folders for file in _yaml_files(folder) for name in _names_in(file.read_bytes())}


def _yaml_files(folder: Path) -> Iterator[Path]:
    """Files that others include are called _template_yaml, _yaml_2shot or paloma: most have no suffix."""
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in names if "yaml" in name or "." not in name or name.endswith(".yml"))


def _names_in(text: bytes) -> Iterator[str]:
    for pattern in (_NAMED, _ITEM):
        for match in pattern.finditer(text):
            yield from (
                word.strip(" \t\r'\"[]") for word in match[1].decode(errors="replace").split(" #")[0].split(",")
            )
