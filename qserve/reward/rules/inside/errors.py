"""The program's exceptions, raised again for the tests: builtin ones as themselves, others as classes made for them.

Only what can't end the tests well: SystemExit is one that the tests' end does not take for theirs, a StopIteration that
no iterator raised would end a loop of theirs early, and a class of the program's that is called like one of
unittest's (SkipTest) is another class.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from qserve.reward.rules.inside.proxy import Remote

__all__ = ["FromProgram", "exception_class", "raised"]


class FromProgram(SystemExit):
    """The program wanted to end; the tests have not."""


def exception_class(name: str, bases: tuple[Any, ...]) -> type[BaseException]:
    """Stands for a class of the program's that can be caught."""
    kept = tuple(_harmless(base) for base in bases if isinstance(base, type) and issubclass(base, BaseException))
    try:
        return type(name, kept or (Exception,), {"__getattr__": _attribute, "__str__": _text})
    except TypeError:
        return type(name, (Exception,), {"__getattr__": _attribute, "__str__": _text})


def raised(cls: Any, args: tuple[Any, ...], text: str, origin: Remote, *, of_iterator: bool) -> BaseException:
    """What is raised here for what the program raised."""
    cls = _harmless(cls) if isinstance(cls, type) and issubclass(cls, BaseException) else Exception
    if issubclass(cls, StopIteration) and not of_iterator:
        cls, args = RuntimeError, ("the program raised StopIteration",)
    error: BaseException = cls.__new__(cls, *args)
    if hasattr(cls, "__getattr__"):
        error.__dict__.update(_origin=origin, _said=text)
    return error


def _harmless(cls: type[BaseException]) -> type[BaseException]:
    if issubclass(cls, SystemExit):
        return cls if issubclass(cls, FromProgram) else FromProgram
    return cls if issubclass(cls, Exception) else Exception


def _attribute(self: Any, name: str) -> Any:
    origin = self.__dict__.get("_origin")
    if origin is None or name.startswith("__"):
        raise AttributeError(name)
    return getattr(origin, name)


def _text(self: Any) -> str:
    said = self.__dict__.get("_said")
    return BaseException.__str__(self) if said is None else str(said)
