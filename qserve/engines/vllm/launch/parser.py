"""The installed engine's own flags, and command lines held against them before anything is started."""

from __future__ import annotations

import difflib
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from qserve.detect.packages import Packages
from qserve.engines.vllm.detect import distribution_of, version_of
from qserve.engines.vllm.launch.diagnose import failure_of
from qserve.engines.vllm.launch.versions import Release, release_of
from qserve.errors import UsageError, WorkerFailed
from qserve.packages import install_command

__all__ = ["Argument", "Flag", "FlagParser", "installed_parser", "user_cache"]

_log = logging.getLogger("qserve.engines.vllm.launch")
_TIMEOUT_S = 300
# What argparse takes for a negative number, hence for a value.
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?$")


@dataclass(frozen=True)
class Flag:
    """One option string of the parser. `dest` is the setting it writes; `nargs` is argparse's (None: one value)."""

    name: str
    dest: str
    nargs: int | str | None
    choices: tuple[str, ...] | None


@dataclass(frozen=True)
class Argument:
    """A flag as somebody wrote it: `words` are the parts of the command line, `values` what the flag was given.

    `key` is the dotted rest of `--hf-overrides.rope.factor`, empty for a plain flag.
    """

    flag: Flag
    values: tuple[str, ...]
    words: tuple[str, ...]
    key: str = ""


@dataclass(frozen=True)
class FlagParser:
    """The flags that one release of vLLM knows."""

    version: str
    flags: Mapping[str, Flag]

    def parse(self, words: Sequence[str]) -> tuple[Argument, ...]:
        """Split a command line into its flags.

        Raises UsageError for a flag that this release does not know, a missing value, or one that is no choice.
        """
        found, rest = [], list(words)
        while rest:
            found.append(self._next(rest))
        return tuple(found)

    def _next(self, rest: list[str]) -> Argument:
        word = rest.pop(0)
        name, key, value = _split(word)
        flag = self._flag(name, word)
        if value is not None:
            argument = Argument(flag, (value,), (word,), key)
        else:
            taken = _take(flag, rest)
            argument = Argument(flag, taken, (word, *taken), key)
        self._check_values(argument)
        return argument

    def _flag(self, name: str, word: str) -> Flag:
        if name in self.flags:
            return self.flags[name]
        if not name.startswith("-"):
            raise UsageError(f"{word!r} is not a flag of vLLM; a value follows its flag")
        near = difflib.get_close_matches(name, self.flags, n=3, cutoff=0.6)
        raise UsageError(
            f"vLLM {self.version} has no flag {name}"
            + (f"; similar flags are {', '.join(near)}" if near else "")
            + ". `vllm serve --help=all` lists them"
        )

    def _check_values(self, argument: Argument) -> None:
        flag, values = argument.flag, argument.values
        if flag.nargs in (None, "+") and not values:
            raise UsageError(f"{flag.name} of vLLM needs a value")
        if flag.nargs == 0 and values:
            raise UsageError(f"{flag.name} of vLLM takes no value, but was given {values[0]!r}")
        wrong = [value for value in values if flag.choices and not argument.key and value not in flag.choices]
        if wrong:
            raise UsageError(f"{flag.name} {wrong[0]}: vLLM {self.version} takes {', '.join(flag.choices or ())} there")


def installed_parser(cache_folder: Path | None = None) -> FlagParser:
    """The flags of the vLLM in this environment.

    The first call after an installation asks the engine itself, in a process of its own, which takes about ten
    seconds; later ones read what it wrote into the user's cache. Raises UsageError where no vLLM that qserve drives is
    installed, WorkerFailed where it is broken.
    """
    packages = Packages.installed()
    version = version_of(packages)
    if version is None:
        raise UsageError(f"--engine vllm: vLLM is not installed; {install_command('vllm')}, or `make setup`")
    release = release_of(version)
    file = (cache_folder or user_cache()) / f"vllm-flags-{release.version}-{_installation(packages)}.json"
    try:
        return parser_of(release.version, json.loads(file.read_text()))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        _log.warning("asking vLLM %s for its flags: once per installation, about ten seconds", release.version)
        flags = _ask_engine(release)
        _keep(file, flags)
        return parser_of(release.version, flags)


def parser_of(version: str, flags: Mapping[str, Mapping[str, Any]]) -> FlagParser:
    """A parser from what `print_flags` wrote; LookupError, TypeError or AttributeError for anything else."""
    if not flags:
        raise LookupError("no release is without flags")
    return FlagParser(
        version,
        {
            name: Flag(name, item["dest"], item["nargs"], tuple(item["choices"]) if item["choices"] else None)
            for name, item in flags.items()
        },
    )


def _split(word: str) -> tuple[str, str, str | None]:
    """Name, dotted key and attached value of a word, in the spellings that vLLM takes: _ for -, -O3, --a.b=c."""
    if re.fullmatch(r"-O=?\S+", word):
        return "--optimization-level", "", word[2:].removeprefix("=")
    head, equals, value = word.partition("=")
    name, _, key = head.partition(".")
    if name.startswith("--"):
        name = "--" + name[2:].replace("_", "-")
    return name, key, value if equals else None


def _take(flag: Flag, rest: list[str]) -> tuple[str, ...]:
    """Move the values of `flag` from the front of `rest`."""
    most = {None: 1, 0: 0, "?": 1}.get(flag.nargs, len(rest))
    taken: list[str] = []
    while rest and len(taken) < most and (not rest[0].startswith("-") or _NEGATIVE_NUMBER.match(rest[0])):
        taken.append(rest.pop(0))
    return tuple(taken)


def _ask_engine(release: Release) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="qserve-flags-") as folder:
        file = Path(folder) / "flags.json"
        done = subprocess.run(
            [sys.executable, "-m", "qserve.engines.vllm.launch.print_flags", release.parser_module, str(file)],
            env={**os.environ, "VLLM_NO_USAGE_STATS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
        if done.returncode == 0 and file.exists():
            flags: dict[str, Any] = json.loads(file.read_text())
            return flags
    lines = done.stdout.decode(errors="replace").splitlines()
    raise WorkerFailed(f"vLLM {release.version} is installed but can't be imported: {failure_of(lines).message}")


def _keep(file: Path, flags: Mapping[str, Any]) -> None:
    """Write at once or not at all; a cache that can't be written costs time, nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as part:
            json.dump(flags, part)
        Path(part.name).replace(file)
    except OSError:
        return


def user_cache() -> Path:
    """Where what takes long to find out, or to compile, is kept from start to start."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "qserve"


def _installation(packages: Packages) -> str:
    """Tells one installation of a release from another."""
    record = Path(str(distribution(distribution_of(packages)).locate_file(""))) / "vllm" / "__init__.py"
    try:
        return f"{record.stat().st_mtime_ns:x}"
    except OSError:
        return "0"
