"""The compiled library: made once, never taken from a folder that others may write to."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from qserve.model.cpu import build

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    # One file of them: all take ten seconds, and every other test of the compiled library needs them.
    monkeypatch.setattr(build, "_SOURCES", build._SOURCES[-1:])
    return tmp_path / "qserve"


def test_it_is_compiled_once(cache: Path) -> None:
    made = build._file()
    assert made.parent == cache
    assert [one.name for one in cache.iterdir()] == [made.name]
    written_ns = made.stat().st_mtime_ns
    assert build._file().stat().st_mtime_ns == written_ns


def test_those_who_start_together_compile_it_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opens the lock for itself, as processes do."""
    calls: list[Path] = []
    compiled = build._compiled

    def counted(compiler: str, folder: Path, name: str) -> Path:
        calls.append(folder / name)
        return compiled(compiler, folder, name)

    monkeypatch.setattr(build, "_compiled", counted)
    with ThreadPoolExecutor(4) as processes:
        made = set(processes.map(lambda _: build._file(), range(4)))
    assert made == set(calls) and len(calls) == 1
    assert [one.name for one in cache.iterdir()] == [calls[0].name]


def test_a_folder_that_others_write_to_is_not_trusted(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    cache.chmod(0o777)
    made = build._file()
    assert made.parent != cache
    assert not list(cache.iterdir())
    shutil.rmtree(made.parent)


@pytest.mark.parametrize(
    ("compiler", "said"), [("false", "false failed"), ("no-such-cc", "no-such-cc, which was not found")]
)
def test_a_compiler_that_fails_is_named(compiler: str, said: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(build._NotBuilt, match=said):
        build._file()
    assert not cache.exists() or not list(cache.iterdir())


def test_flags_of_the_users_compiler_hold() -> None:
    """The last -march is the one that a compiler takes."""
    command = build._command("ccache gcc -march=x86-64")
    assert command[:2] == ["ccache", "gcc"]
    assert command[-1] == "-march=x86-64"
    assert "-march=native" in command
