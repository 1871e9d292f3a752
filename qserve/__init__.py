"""qserve: from "will it fit?" to a measured, evaluated Qwen service in one command, or in one function.

`qserve.plan`, `qserve.up`, `qserve.score`, `qserve.evaluate` and `qserve.compare` are what the commands do, from
Python (`qserve.library`); they are imported when they are first named, so that `import qserve` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from qserve.version import __version__

if TYPE_CHECKING:
    from qserve.evaluation.comparison.compare import Candidate
    from qserve.evaluation.results import EvalResult
    from qserve.library.measuring import compare, evaluate
    from qserve.library.planning import Plan, plan
    from qserve.library.scoring import score
    from qserve.library.serving import Service, up

__all__ = ["Candidate", "EvalResult", "Plan", "Service", "__version__", "compare", "evaluate", "plan", "score", "up"]


_MODULES = {
    "Candidate": "evaluation.comparison.compare",
    "EvalResult": "evaluation.results",
    "Plan": "library.planning",
    "Service": "library.serving",
    "compare": "library.measuring",
    "evaluate": "library.measuring",
    "plan": "library.planning",
    "score": "library.scoring",
    "up": "library.serving",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"qserve.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
