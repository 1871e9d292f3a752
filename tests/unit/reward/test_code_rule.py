"""The rule `code`: what a program gets, what it can't reach, and that nothing runs without a sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.reward.rules import make_rule, sandbox

TESTS = "assert add(1, 2) == 3"


@pytest.fixture
def code() -> object:
    """The rule's function; skips where this machine has no sandbox."""
    if why := sandbox._why_not():
        pytest.skip(why)
    return make_rule("code", {"timeout_s": 4}, "here").check()


GOOD = "def add(a, b):\n    return a + b"
PROGRAMS = {
    "right": (GOOD, 1),
    "right, in words": (f"First:\n```python\n1/0\n```\nNo:\n```python\n{GOOD}\n```\nDone.", 1),
    "wrong": ("def add(a, b):\n    return a - b", 0),
    "no Python": ("It is the sum.", 0),
    "ends before its tests": ("import sys\nsys.exit(0)", 0),
    "ends at once": ("import os\nos._exit(0)", 0),
    "ends in the test": (f"class Any:\n    __eq__ = lambda *_: exit(0)\n{GOOD.replace('a + b', 'Any()')}", 0),
    "takes all memory": (f"x = bytearray(1 << 32)\n{GOOD}", 0),
    "many processes": (f"import os\nfor _ in range(500): os.fork() or os._exit(0)\n{GOOD}", None),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_gets(name, code) -> None:
    program, meant = PROGRAMS[name]
    found = code(program, TESTS)
    assert meant is None or found == meant


def test_what_never_ends_is_ended(code) -> None:
    assert make_rule("code", {"timeout_s": 0.5}, "here").check()("while True: pass", TESTS) == 0


def test_it_reaches_no_file_network_or_environment(code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_TEST", "s")
    secret = tmp_path / "secret"
    secret.write_text("s")
    for reach in (
        f"open({str(secret)!r}).read()",
        "open('/etc/hostname').read()",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        "open('/new', 'w')",
        "open('/usr/new', 'w')",
        "__import__('socket').create_connection(('127.0.0.1', 9), 1)",
        "__import__('os').environ['SECRET_OF_THE_TEST']",
        f"__import__('os').kill({__import__('os').getpid()}, 0)",
    ):
        assert code(f"{GOOD}\n{reach}", TESTS) == 0, reach
        assert code(f"{GOOD}\ntry:\n    {reach}\nexcept Exception: pass", TESTS) == 1, reach


@pytest.fixture
def forgotten() -> Iterator[None]:
    sandbox._why_not.cache_clear()
    yield
    sandbox._why_not.cache_clear()


def test_without_a_sandbox_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forgotten: None) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"^part 1: the rule code .*sandbox only: bubblewrap is not installed"):
        make_rule("code", {}, "part 1")
    sandbox._why_not.cache_clear()
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho No permissions to create a new namespace >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match=r"can't make a sandbox on this machine \(No permissions"):
        make_rule("code", {}, "part 1")


def test_limits_are_numbers_in_bounds() -> None:
    for options, words in (
        ({"timeout_s": 60}, "'timeout_s' is 60"),
        ({"memory_mib": "much"}, "'memory_mib' is 'much'"),
    ):
        with pytest.raises(UsageError, match=words):
            make_rule("code", options, "here")
