"""lm-eval's tasks and ours, with their data: found, or a sentence about what is missing."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from qserve.errors import MissingExtra, UsageError
from qserve.evaluation.suites import task_folders
from qserve.evaluation.task_names import check_names

__all__ = ["Tasks", "import_lm_eval", "load_tasks", "quiet"]


@dataclass(frozen=True)
class Tasks:
    """Tasks that can be asked.

    Attributes:
        names: as they were given.
        manager: lm-eval's TaskManager, which knows them.
        kinds: their output types: `generate_until`, `multiple_choice`, `loglikelihood`, `loglikelihood_rolling`.
    """

    names: tuple[str, ...]
    manager: Any
    kinds: frozenset[str]

    @property
    def only_generate(self) -> bool:
        """Whether no task wants log-probabilities."""
        return self.kinds == {"generate_until"}


def load_tasks(names: tuple[str, ...]) -> Tasks:
    """The tasks of these names, their data at hand.

    Raises UsageError for an unknown name and for data that can't be had, MissingExtra without lm-eval.
    """
    check_names(names)
    manager = _manager_of(names)
    try:
        with quiet():
            loaded = manager.load(list(names))["tasks"]
    except ImportError as error:
        raise UsageError(
            f"--tasks {','.join(names)}: {error.name or error} is not installed, which they need"
        ) from error
    except Exception as error:
        if not _is_about_data(error):
            raise
        raise UsageError(
            f"the data of {', '.join(names)} can't be had ({_first_line(error)}): they come from the hub, by network "
            "or from its local cache. --suite offline needs neither"
        ) from error
    return Tasks(names, manager, frozenset(str(task.get_config("output_type")) for task in loaded.values()))


def import_lm_eval() -> Any:
    """The package, its submodules that we use imported. Raises MissingExtra where it is not installed."""
    try:
        with quiet():
            importlib.import_module("lm_eval.tasks")
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


def _manager_of(names: tuple[str, ...]) -> Any:
    import_lm_eval()
    # Its own thousands of tasks take seconds to list; ours are there at once.
    for include_defaults in (False, True):
        manager = _manager(include_defaults)
        unknown = [name for name in names if not manager.match_tasks([name])]
        if not unknown:
            return manager
    raise UsageError(
        f"--tasks {unknown[0]}: lm-eval has no task of that name; `lm_eval ls tasks` lists them, and those that need "
        "no network are the suite offline"
    )


def _manager(include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    with quiet():
        return TaskManager(include_path=[str(folder) for folder in task_folders()], include_defaults=include_defaults)


def _is_about_data(error: Exception) -> bool:
    """Errors of reaching and reading data: of the system, and those that the hub's and datasets' clients define."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(packages & {"datasets", "huggingface_hub", "httpx", "requests"})


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
