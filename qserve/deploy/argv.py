"""Options of a command as words of a command line again, and which of them name files of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from qserve.deploy.service import MODELS, Mount
from qserve.errors import UsageError

__all__ = ["Option", "flags_of", "local_path", "mounted", "words_of"]

# Options that may name a file or folder. `demo` comes along with qserve; a hub id is fetched where the service runs.
_PATHS = ("model", "reward", "embed", "base", "template", "judge", "trace", "device_map", "keys")
_BUNDLED = "demo"
_RECIPES = (".yaml", ".yml", ".toml")


class ParamType(Protocol):
    """Of an option's type its name."""

    @property
    def name(self) -> str: ...


class Option(Protocol):
    """What is asked of an option: click's own have it."""

    @property
    def name(self) -> str: ...
    @property
    def opts(self) -> list[str]: ...
    @property
    def secondary_opts(self) -> list[str]: ...
    @property
    def type(self) -> ParamType: ...


def words_of(options: Iterable[Option], values: Mapping[str, Any]) -> list[str]:
    """`--flag=value` for each of `options` that has a value, in their order."""
    given = [one for option in options if option.name in values for one in flags_of(option, values[option.name])]
    return [flag if value is None else f"{flag}={value}" for flag, value in given]


def flags_of(option: Option, value: Any) -> list[tuple[str, str | None]]:
    """The flag with each value that it is given, as a command line takes it; None beside a switch."""
    if isinstance(value, bool):
        flags = option.opts if value else option.secondary_opts
        return [(flag, None) for flag in flags[:1]]
    several = value if isinstance(value, tuple) else (value,)
    return [(option.opts[0], _word(option, one)) for one in several]


def _word(option: Option, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if option.type.name == "time":  # kept in milliseconds
        return f"{value:.15g}ms" if value % 1000 else f"{value / 1000:.15g}s"
    return f"{value:.15g}"


def mounted(values: Mapping[str, Any], *, absolute: bool) -> tuple[dict[str, Any], tuple[Mount, ...]]:
    """`values` with every local path as the service will see it, and what has to be mounted for that.

    `absolute`: the service runs on this machine, so paths only become absolute. Raises UsageError for a folder that is
    no use without what its links point to.
    """
    changed = dict(values)
    mounts: dict[str, Mount] = {}
    for name in _PATHS:
        path = local_path(values.get(name))
        if path is None:
            continue
        if absolute:
            changed[name] = str(path)
            continue
        # A recipe names further files, from its own folder on.
        shared = path.parent if name == "reward" and path.suffix in _RECIPES else path
        _check_links(shared, name)
        mount = Mount(str(shared), f"{MODELS}/{shared.name}")
        if mounts.setdefault(mount.inside, mount) != mount:
            raise UsageError(f"{mounts[mount.inside].host} and {mount.host} would both be {mount.inside}; rename one")
        changed[name] = f"{MODELS}/{path.relative_to(shared.parent)}"
    return changed, tuple(mounts.values())


def local_path(value: Any) -> Path | None:
    """The absolute path, where `value` is one of this machine's; None of what is fetched, or comes with qserve."""
    if value is None or str(value) == _BUNDLED:
        return None
    path = Path(str(value)).expanduser()
    return path.absolute() if path.exists() else None


def _check_links(folder: Path, option: str) -> None:
    if not folder.is_dir():
        return
    inside = folder.resolve()
    for file in folder.iterdir():
        if file.is_symlink() and not file.resolve().is_relative_to(inside):
            raise UsageError(
                f"--{option} {folder}: {file.name} is a link to {file.resolve()}, which a container would not see; "
                f"copy the folder with its files (cp --recursive --dereference), or give --{option} a hub id"
            )
