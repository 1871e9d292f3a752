"""Options as data: an option's name, kind, help and the engine's own flag stand together, at the field that holds it.

The command line, the arguments of an engine, the command of a suggestion and the refusal of what an engine does not
read are all made from these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

__all__ = ["EngineOptions", "Kind", "Option", "option", "options_of"]

Kind = Literal["text", "count", "number", "share", "bytes", "flag", "switch", "choice", "names", "engine", "device map"]
"""`count` is from 1 on, `number` from 0 on, `share` above 0 and at most 1; a `switch` is on, off, or the engine's own
default; `names` are words with commas between."""

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """One option: `default` is what nobody gave. `sent_as` is the engine's own flag, where it gets the value as it is.

    `write` makes the arguments of a value where flag and value beside each other are not enough. `harmless` are
    further values that ask for nothing, which every engine takes.
    """

    name: str
    kind: Kind
    help: str
    default: Any
    choices: tuple[str, ...] = ()
    sent_as: str | None = None
    write: Callable[[Any], tuple[str, ...]] | None = None
    harmless: tuple[Any, ...] = ()

    @property
    def flag(self) -> str:
        """As qserve spells it: --max-model-len."""
        return "--" + self.name.replace("_", "-")

    def asks_for_something(self, value: Any) -> bool:
        """Whether `value` is more than leaving the option out."""
        return value != self.default and value not in (None, False, "auto", *self.harmless)

    def arguments(self, value: Any) -> tuple[str, ...]:
        """What the engine's command line gets for `value`; nothing for an option that is not sent as it is."""
        if self.sent_as is None or value is None:
            return ()
        if self.write is not None:
            return self.write(value)
        if self.kind == "switch":
            return (self.sent_as if value else f"--no-{self.sent_as.removeprefix('--')}",)
        if self.kind == "flag":
            return (self.sent_as,) if value else ()
        return self.sent_as, str(value)


def option(kind: Kind, help: str, default: Any = None, **more: Any) -> Any:  # noqa: A002 - as click calls it
    """A dataclass field that is an option; `more` are the other fields of `Option`."""
    return field(default=default, metadata={_KEY: {"kind": kind, "help": help, "default": default, **more}})


def options_of(holder: type[Any]) -> tuple[Option, ...]:
    """The options among the fields of a dataclass, in their order."""
    return tuple(Option(item.name, **item.metadata[_KEY]) for item in fields(holder) if _KEY in item.metadata)


@dataclass(frozen=True)
class EngineOptions:
    """The options of one engine: a frozen dataclass of `option` fields, all with defaults."""

    engine: ClassVar[str]

    def given(self) -> Iterator[Option]:
        """Those that ask for something."""
        return (one for one in options_of(type(self)) if one.asks_for_something(getattr(self, one.name)))
