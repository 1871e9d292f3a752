"""transformers' list of all its models, made only where somebody asks for it.

`import transformers` reads every file below its `models` folder, to know which class stands in which; importing
`transformers.models` does the same again for a list of its own. A worker finds its model by the module's name and never
asks that second list, which took a fifth of its imports' processor time.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["defer_model_list"]

_NAME = "transformers.models"
_LIBRARY = _NAME.partition(".")[0]


def defer_model_list() -> None:
    """Before transformers is imported; afterwards, and where it is not installed, nothing happens."""
    package = None if _LIBRARY in sys.modules else importlib.util.find_spec(_LIBRARY)
    if package is None or package.origin is None:
        return
    folder = Path(package.origin).parent / "models"
    spec = importlib.util.spec_from_file_location(
        _NAME, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is not None and (folder / "__init__.py").is_file():
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[_NAME] = module


class _Deferred(ModuleType):
    """The package before its own code has run. Its modules can be imported; any other name runs that code."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (Path(self.__path__[0]) / name).is_dir():
            return importlib.import_module(f"{_NAME}.{name}")
        if sys.modules[_NAME] is self:
            assert self.__spec__ is not None and self.__spec__.loader is not None
            self.__spec__.loader.exec_module(self)  # it puts its list in its own place in sys.modules
        return getattr(sys.modules[_NAME], name)
