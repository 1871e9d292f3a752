"""Environments found, made and removed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from qserve.detect.host import read_memory
from qserve.environments.place import Environment, made_names
from qserve.environments.requirements import known_names, requirements_of
from qserve.errors import QserveError, UsageError
from qserve.units import format_bytes

__all__ = ["environment_of", "environments", "make", "ready", "remove"]

Progress = Callable[[str], None]
_DOING = re.compile(r"(Collecting|Processing|Downloading|Installing) ")
_FIRST_WORD = re.compile(r"(?:\S*/)?([\w.]+?)(?:-\d|[<>=!~ ;\[(]|$)")
_NO_INDEX = ("NewConnectionError", "NameResolutionError", "ConnectTimeout", "from versions: none")
_ADDRESS = re.compile(r"[a-z+]{2,12}://[^ ,)]+")
# Of an environment that pip must not install into, and of the packages that the new Python must not see.
_NOT_HANDED_ON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER")


def environments(root: Path) -> list[Environment]:
    """All that are known or lie in `root`, by name."""
    known = known_names()
    return [
        Environment(name, root, requirements_of(name) if name in known else None, _accelerator())
        for name in sorted({*known, *made_names(root)})
    ]


def environment_of(name: str, root: Path) -> Environment:
    """By name. Raises UsageError where there is no requirement file of that name."""
    return Environment(name, root, requirements_of(name), _accelerator())


def ready(environment: Environment, progress: Progress) -> bool:
    """Makes it where it is not there or was made from another file; whether it had to be made.

    Raises UsageError where the disk is too small, QserveError where pip or venv fails.
    """
    if environment.state() == "ready":
        return False
    with environment.changed(lambda: progress("another process uses it; waiting")):
        if environment.state() == "ready":  # that one made it
            return False
        make(environment, progress)
    return True


def make(environment: Environment, progress: Progress) -> None:
    """In a folder beside, which takes its place at the end. The caller holds `Environment.changed`."""
    requirements = environment.requirements
    assert requirements is not None, "made from them"
    for left in environment.root.glob(f".{environment.name}.partial-*"):
        shutil.rmtree(left, ignore_errors=True)
    _check_disk(environment, requirements.disk_bytes(environment.accelerator))
    fresh = environment.root / f".{environment.name}.partial-{os.getpid()}"
    try:
        with environment.log.open("w") as log:
            progress("making it")
            _run([sys.executable, "-m", "venv", str(fresh)], log, environment, progress)
            pip = [str(fresh / "bin" / "python"), "-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
            _run([*pip, "--progress-bar", "off", "--requirement", str(requirements.file)], log, environment, progress)
        _move_scripts(fresh, environment.folder)
        environment.write_record(fresh)
        shutil.rmtree(environment.folder, ignore_errors=True)
        fresh.rename(environment.folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def remove(name: str, root: Path) -> int:
    """The bytes that are free then. Raises UsageError for one that is not there, or is in use."""
    if name not in made_names(root):
        there = ", ".join(made_names(root)) or "none"
        raise UsageError(f"the environment {name[:80]!r} is not made; here are: {there}")
    environment = Environment(name, root, None, "")

    def refuse() -> None:
        raise UsageError(f"the environment {name} is in use; end what runs in it first")

    with environment.changed(refuse):
        freed = environment.num_bytes
        shutil.rmtree(environment.folder)
        environment.log.unlink(missing_ok=True)
    return freed


def _accelerator() -> str:
    from qserve.detect.nvml import read_devices

    devices, _ = read_devices(os.environ, read_memory())
    return "cuda" if devices else "cpu"


def _check_disk(environment: Environment, num_bytes: int) -> None:
    free = shutil.disk_usage(environment.root).free
    if num_bytes > free:
        raise UsageError(
            f"the environment {environment.name} takes {format_bytes(num_bytes)} on disk, and {environment.root} has "
            f"{format_bytes(free)} free; --state-dir or QSERVE_STATE_DIR names a folder on a larger disk"
        )


def _run(command: Sequence[str], log: TextIO, environment: Environment, progress: Progress) -> None:
    """Follows its output line by line, into the log. Raises QserveError where it fails."""
    environ = {name: value for name, value in os.environ.items() if name not in _NOT_HANDED_ON}
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None, "a pipe"
    said = []
    with process:
        try:
            for line in process.stdout:
                log.write(line)
                said.append(line)
                if doing := _doing(line.strip()):
                    progress(doing)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise QserveError(failure(environment, said))


def failure(environment: Environment, said: Sequence[str]) -> str:
    """One sentence of what pip or venv said; where packages come from is nobody's business on a screen."""
    text = "".join(said)
    where = f"all of its words: {environment.log}"
    if any(word in text for word in _NO_INDEX):
        return (
            f"the environment {environment.name} could not be made: pip did not find the packages in its index. It "
            f"needs a network, or pip's own settings (PIP_INDEX_URL, PIP_FIND_LINKS); {where}"
        )
    errors = [line.strip() for line in said if line.startswith(("ERROR", "Error"))]
    reason = _ADDRESS.sub("<address>", (errors or [line.strip() for line in said[-1:]] or ["it said nothing"])[0])
    return f"the environment {environment.name} could not be made: {reason.removeprefix('ERROR: ')}; {where}"


def _doing(line: str) -> str:
    """What pip does, without versions and addresses: "collecting torch"."""
    match = _DOING.match(line)
    if match is None:
        return ""
    if match[1] == "Installing":
        return "installing the packages"
    name = _FIRST_WORD.match(line[match.end() :])
    return f"collecting {name[1]}" if name else ""


def _move_scripts(fresh: Path, folder: Path) -> None:
    """Scripts of a venv name its Python by the whole path."""
    for script in (fresh / "bin").iterdir():
        if script.is_symlink() or not script.is_file():
            continue
        text = script.read_bytes()
        if str(fresh).encode() in text:
            script.write_bytes(text.replace(str(fresh).encode(), str(folder).encode()))
