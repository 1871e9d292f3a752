"""Named lists of tasks: evals/*.yaml, or a file of the user's."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from qserve.errors import UsageError
from qserve.yaml_errors import yaml_problem

__all__ = ["Suite", "load", "suites", "task_folders"]


@dataclass(frozen=True)
class Suite:
    """What to run.

    Attributes:
        name: of the suite.
        about: what it is for, one sentence.
        tasks: lm-eval's names.
        num_fewshot: None: what each task has.
        limit: items a task; None: all.
        chat: through the model's chat template.
        needs_network: the tasks' data come from the hub.
    """

    name: str
    about: str
    tasks: tuple[str, ...]
    num_fewshot: int | None = None
    limit: int | None = None
    chat: bool = False
    needs_network: bool = True


def task_folders() -> list[Path]:
    """Where tasks lie that lm-eval does not bring itself: evals/ of the source tree, or what the wheel holds of it."""
    package = Path(__file__).parents[1]
    return [folder for folder in (package.parent / "evals", package / "_evals") if folder.is_dir()]


def suites() -> dict[str, Path]:
    """The suites that come with qserve, by name."""
    return {path.stem: path for folder in task_folders() for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> Suite:
    """The suite of that name, or in that file. Raises UsageError for one that is not there or can't be read."""
    import yaml

    path = Path(name).expanduser()
    if not path.is_file():
        known = suites()
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise UsageError(f"--suite {name}: no such file or suite{hint} The suites are {', '.join(known)}")
        path = known[name]
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{path} can't be read as YAML: {yaml_problem(error)}") from None
    return _checked(path, values)


def _checked(path: Path, values: Any) -> Suite:
    known = {item.name for item in fields(Suite)} - {"name"}
    if not isinstance(values, dict) or not isinstance(values.get("tasks"), list) or not values["tasks"]:
        raise UsageError(f"{path} needs `tasks`, a list of lm-eval's task names")
    strange = sorted(set(values) - known)
    if strange:
        raise UsageError(f"{path}: {strange[0]} is not a setting of a suite; it takes {', '.join(sorted(known))}")
    return Suite(path.stem, **{"about": "", **values, "tasks": tuple(str(task) for task in values["tasks"])})
