"""Names that mean the same on both sides: modules of the standard library that compute, their classes and functions."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["MODULES", "name_of", "named"]

_MODULES = (
    "abc bisect builtins cmath collections collections.abc copy dataclasses datetime decimal enum fractions functools "
    "heapq itertools math numbers operator random re statistics string typing "
    "_bisect _collections _functools _heapq _operator"
)
MODULES = frozenset(_MODULES.split())
_FUNCTIONS = (
    "abs all any ascii bin callable chr divmod format hash hex isinstance issubclass iter len max min next oct ord pow "
    "print repr round sorted sum"
)
_FUNCTION_TYPES = (type(len), type(lambda: None))
_MODULE_TYPE = type(sys)


def name_of(value: Any) -> tuple[str, str] | None:
    """(module, qualified name) of what both sides have; None for anything else."""
    if type(value) is _MODULE_TYPE:
        own = str(getattr(value, "__name__", ""))
        return (own, "") if own in MODULES and sys.modules.get(own) is value else None
    if not isinstance(value, type) and type(value) not in _FUNCTION_TYPES:
        return None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or module not in sys.modules:
        return None
    try:
        return (module, name) if named(module, name) is value else None
    except LookupError:
        return None


def named(module: str, name: str) -> Any:
    """What these names mean here. Raises LookupError unless it is a module, class or function that both sides have."""
    if module not in MODULES or name.startswith("_"):
        raise LookupError(module)
    found: Any = __import__(module, fromlist=["_"])
    if not name:
        return found
    found = found.__dict__.get(name)
    is_function = type(found) in _FUNCTION_TYPES and (module != "builtins" or name in _FUNCTIONS.split())
    if not is_function and not isinstance(found, type):
        raise LookupError(name)
    return found
