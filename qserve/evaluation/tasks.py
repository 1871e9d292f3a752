"""Loads lm-eval's and qserve's tasks with their data; errors say what is missing."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qserve.errors import MissingExtra, QserveError, UsageError
from qserve.evaluation.golds import Unscorable, leave_out_unscorable, unscorable_of
from qserve.evaluation.refusals import leave_out_refused
from qserve.evaluation.suites import task_folders
from qserve.evaluation.task_names import check_names
from qserve.evaluation.text_files import is_text_file, text_task

__all__ = ["TaskSpec", "Tasks", "check_lm_eval", "import_lm_eval", "load_tasks", "quiet"]


_PATH_ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class TaskSpec:
    """One entry of `--tasks`: a task, a group or a tag of lm-eval's, or a file of one's own.

    Attributes:
        name: as it was given.
        spec: what lm-eval takes: a name, or what was loaded from a file.
        kinds: output types: `generate_until`, `multiple_choice`, `loglikelihood`, `loglikelihood_rolling`.
        unscorable: by task, the items that are left out since their gold is none of their choices.
    """

    name: str
    spec: Any
    kinds: frozenset[str]
    unscorable: Mapping[str, Unscorable] = field(default_factory=dict)

    @property
    def only_generates(self) -> bool:
        """Whether it wants no log-probabilities."""
        return self.kinds == {"generate_until"}

    @property
    def only_reads(self) -> bool:
        """Whether it asks how likely whole texts are, and for no answer."""
        return self.kinds == {"loglikelihood_rolling"}


@dataclass(frozen=True)
class Tasks:
    """Tasks that can be asked; `manager` is lm-eval's TaskManager, which knows them."""

    specs: tuple[TaskSpec, ...]
    manager: Any

    @property
    def only_generate(self) -> bool:
        """Whether no task wants log-probabilities."""
        return all(spec.only_generates for spec in self.specs)

    def unscorable(self, limit: int | None) -> dict[str, Unscorable]:
        """By task, the items that are left out when `limit` are asked."""
        found = {task: one.within(limit) for spec in self.specs for task, one in spec.unscorable.items()}
        return {task: one for task, one in found.items() if one.whys}


def load_tasks(names: tuple[str, ...], include_path: tuple[str, ...] = ()) -> Tasks:
    """The tasks of these names, their data at hand.

    A name that ends in .yaml, or is a folder, is a task of one's own (each of those in the folder); its data files are
    found beside it. One that ends in .txt, .md, .json or .jsonl is a text, whose perplexity is asked
    (`text_files.py`). `include_path` are folders whose tasks are known by name.

    Raises UsageError for an unknown name, a file that can't be read and data that can't be had, MissingExtra without
    lm-eval.
    """
    texts = {name: text_task(name) for name in names if is_text_file(name)}
    _check_distinct(texts)
    files = {name: _task_files(name) for name in names if name not in texts and _is_path(name)}
    named = tuple(name for name in names if name not in files and name not in texts)
    check_names(named, [Path(folder).expanduser() for folder in include_path])
    manager = _manager_of(named, include_path)
    specs = []
    for name in names:
        if name in texts:
            specs.append(_loaded(manager, name, texts[name], Path.cwd()))
        elif name in files:
            specs += [_loaded(manager, str(file), file.resolve(), file.resolve().parent) for file in files[name]]
        else:
            specs.append(_loaded(manager, name, name, _folder_of(manager, name, include_path)))
    return Tasks(tuple(specs), manager)


def _check_distinct(texts: Mapping[str, Mapping[str, Any]]) -> None:
    seen: dict[str, str] = {}
    for name, task in texts.items():
        other = seen.setdefault(str(task["task"]), name)
        if other != name:
            raise UsageError(f"--tasks {other} and {name} would both be {task['task']} in the result; rename one")


def _loaded(manager: Any, name: str, spec: str | Path | dict[str, Any], folder: Path | None) -> TaskSpec:
    """`spec`, loaded: from `folder`, to which a file of one's own names its data."""
    try:
        with quiet(), contextlib.chdir(folder or Path.cwd()):
            loaded = manager.load([spec if isinstance(spec, dict) else str(spec)])
    except ImportError as error:
        raise UsageError(f"--tasks {name} needs {error.name or error}, which is not installed") from error
    except QserveError:
        raise
    except Exception as error:
        if folder is not None:
            raise UsageError(f"--tasks {name}: lm-eval can't load it: {_first_line(error)}") from error
        if not _is_about_data(error):
            raise
        raise UsageError(
            f"the data of {name} can't be read ({_first_line(error)}): it comes from the hub, over the network "
            "or from its local cache. --suite offline needs neither"
        ) from error
    kinds = frozenset(str(task.get_config("output_type")) for task in loaded["tasks"].values())
    # A file is handed over as what was loaded from it: lm-eval would look for its data from the user's folder.
    unscorable = {
        str(one): found for one, task in loaded["tasks"].items() if (found := unscorable_of(task)) is not None
    }
    return TaskSpec(name, str(spec) if folder is None else _root(loaded), kinds, unscorable)


def _folder_of(manager: Any, name: str, include_path: tuple[str, ...]) -> Path | None:
    """Where the file of a task of one's own lies that was named; None for lm-eval's and ours."""
    entry = manager.task_index.get(name)
    file = None if entry is None or entry.yaml_path is None else Path(entry.yaml_path).resolve()
    own = any(file is not None and file.is_relative_to(Path(one).expanduser().resolve()) for one in include_path)
    return file.parent if own and file is not None else None


def _root(loaded: Any) -> Any:
    """The task of a file, or the group of one that is no part of another group."""
    parts = {child for children in loaded["group_map"].values() for child in children}
    return next((group for name, group in loaded["groups"].items() if name not in parts), None) or next(
        iter(loaded["tasks"].values())
    )


def _is_path(name: str) -> bool:
    return name.endswith(_PATH_ENDINGS) or "/" in name or Path(name).is_dir()


def _task_files(name: str) -> list[Path]:
    """The YAML file of that path, or those of a task each in that folder."""
    import yaml

    path = Path(name).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UsageError(f"--tasks {name}: there is no such file or folder; a task of your own is a YAML file")
    try:
        found = [file for file in sorted(path.iterdir()) if file.suffix in _PATH_ENDINGS and _names_task(file)]
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"--tasks {name}: {_first_line(error)}") from None
    if not found:
        raise UsageError(f"--tasks {name}: no YAML file in this folder has `task: NAME`")
    return found


def _names_task(file: Path) -> bool:
    """Files without `task` are parts that others include."""
    lines = file.read_text(errors="replace").splitlines()
    return any(line.startswith("task:") and line.partition(":")[2].strip() for line in lines)


def check_lm_eval() -> None:
    """Raises MissingExtra where lm-eval is not installed. Imports nothing: that takes seconds."""
    if importlib.util.find_spec("lm_eval") is None:
        raise MissingExtra("lm-eval", "`qserve eval`")


def import_lm_eval() -> Any:
    """The package, its submodules that we use imported. Raises MissingExtra where it is not installed."""
    try:
        with quiet():
            importlib.import_module("lm_eval.tasks")
            task_class = importlib.import_module("lm_eval.api.task").ConfigurableTask
            leave_out_unscorable(task_class)
            leave_out_refused(task_class)
            return importlib.import_module("lm_eval")
    except ImportError as error:
        raise MissingExtra("lm-eval", "`qserve eval`") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What lm-eval, datasets and their dependencies warn of is theirs; errors still show."""
    logger = logging.getLogger("lm_eval")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _manager_of(names: tuple[str, ...], include_path: tuple[str, ...]) -> Any:
    import_lm_eval()
    missing = [folder for folder in include_path if not Path(folder).expanduser().is_dir()]
    if missing:
        raise UsageError(f"--include-path {missing[0]} is not a folder")
    # Its own thousands of tasks take seconds to list; ours are there at once.
    for include_defaults in (False, True):
        manager = _manager(include_defaults, include_path)
        unknown = [name for name in names if not manager.match_tasks([name])]
        if not unknown:
            return manager
    raise UsageError(
        f"--tasks {unknown[0]}: lm-eval has no task of that name; `lm_eval ls tasks` lists them, and --suite "
        "offline has tasks that need no network"
    )


def _manager(include_defaults: bool, include_path: tuple[str, ...]) -> Any:
    from lm_eval.tasks import TaskManager

    folders = [*map(str, task_folders()), *(str(Path(folder).expanduser()) for folder in include_path)]
    with quiet():
        return TaskManager(include_path=folders, include_defaults=include_defaults)


def _is_about_data(error: Exception) -> bool:
    """Errors of reaching and reading data: of the system, and those that the hub's and datasets' clients define."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(packages & {"datasets", "huggingface_hub", "httpx", "requests"})


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
