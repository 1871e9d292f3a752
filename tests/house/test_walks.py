"""`scripts/walks.py` counts what a tiny package does, and what its source passes on."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

from scripts import walks
from scripts.walking.followed import follow
from scripts.walking.sources import Sources
from scripts.walking.traced import Trace, traced
from scripts.walking.values import modules_imported, values_read

TOP = """
from dataclasses import replace
from pathlib import Path

from walked.low import Box, count, is_open, measured
from walked.middle import keep, Reader

def start(wanted, other):
    renamed = replace(wanted, size=1)
    if is_open(renamed):
        keep(other, item=renamed.part)
    found = measured(Path(wanted.file))
    boxed = Box(wanted)
    keep(again(boxed), other)
    keep(f"{count(wanted)}", other)
    return [again(one) for one in found], Reader(wanted).read()

def again(one):
    return count(one)

def hand():
    keep(1, 2)

def run():
    for number in (1, 2):
        count(number)
    return [count(number) for number in (1, 2)]
"""
MIDDLE = """
from walked import low

class Reader:
    def __init__(self, text):
        self.text = text

    def read(self):
        return low.count(self.text)

def keep(first, item):
    low.count(item)
    low.count(item)
"""
LOW = """
from dataclasses import dataclass

@dataclass
class Box:
    held: object

def count(number):
    return _twice(number)

def _twice(number):
    return number

def is_open(asked):
    return asked.size == 1

def measured(file):
    first = file
    return first
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "walked"
    folder.mkdir()
    for name, text in {"__init__": "", "top": TOP, "middle": MIDDLE, "low": LOW}.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("walked", "walked.top", "walked.middle", "walked.low"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return folder


def test_a_run_counts_calls_and_the_files_that_they_enter(package: Path) -> None:
    run = importlib.import_module("walked.top").run
    trace = Trace(package)
    with traced(trace):
        run()
    assert trace.totals == {"files": 2, "functions": 3, "calls": 9, "switches": 2}
    assert trace.entered == {"top.py": 1, "low.py": 1}
    assert trace.visits == {"low.py": 4}
    assert trace.callers == {"low.py": {("top.py", "run")}}
    assert trace.story == []


def test_a_file_that_calls_another_is_part_of_the_story(package: Path) -> None:
    hand = importlib.import_module("walked.top").hand
    trace = Trace(package)
    with traced(trace):
        hand()
    assert trace.visits == {"middle.py": 1, "low.py": 2}
    assert trace.callers == {"middle.py": {("top.py", "hand")}, "low.py": {("middle.py", "keep")}}
    assert trace.story == ["middle.py"]


def test_a_parameter_is_followed_where_it_is_passed_on(package: Path) -> None:
    walk = follow(Sources(package), "walked/top.py", "start", "wanted")
    assert [file.removeprefix("walked/") for file in walk.stays] == [
        "top.py",
        "middle.py",  # keep(item=renamed.part): not is_open(), which only looks
        "low.py",  # count(), twice, and measured(); not again(boxed): a field holds it
        "top.py",  # again()
        "low.py",
        "middle.py",  # Reader(wanted) and its read()
        "low.py",
    ]
    assert (walk.rooms, walk.returns) == (3, 4)
    assert walk.climbs([["walked.top"], ["walked.middle"], ["walked.low"]]) == 2


def test_another_parameter_takes_its_own_way(package: Path) -> None:
    walk = follow(Sources(package), "walked/top.py", "start", "other")
    # keep() does nothing with its first parameter; it hands the second on, and is entered for that twice.
    assert walk.stays == ["walked/top.py", "walked/middle.py", "walked/low.py", "walked/middle.py"]


@pytest.mark.parametrize(
    ("file", "function", "parameter", "told"),
    [
        ("walked/none.py", "start", "wanted", "there is no file walked/none.py"),
        ("walked/top.py", "stop", "wanted", "walked/top.py has no function stop"),
        ("walked/top.py", "again", "two", "again in walked/top.py has no parameter two; it has one"),
    ],
)
def test_a_place_that_is_not_there_is_named(package: Path, file: str, function: str, parameter: str, told: str) -> None:
    with pytest.raises(LookupError, match=told):
        follow(Sources(package), file, function, parameter)


def test_only_what_is_read_of_untyped_values_counts() -> None:
    source = """
import walked.low
from walked.top import run, start
from pathlib import Path

def command(values, other):
    values["written"] = other["not values"]
    return values["one"], other.values["one"], values.get("two"), values[other], values()["one"]
"""
    assert values_read(ast.parse(source)) == 2
    assert modules_imported(ast.parse(source), "walked") == 2


def test_a_report_ends_with_its_totals(capsys: pytest.CaptureFixture[str]) -> None:
    report = walks.Report(("visits", "file"), [(7, "a.py"), (12, "b.py")], {"files": 2, "calls": 19})
    assert str(report).splitlines() == ["visits  file", "     7  a.py", "    12  b.py", "", "2 files, 19 calls"]
    assert '"totals": {\n    "files": 2' in report.to_json()

    walks.main(["values"])
    assert capsys.readouterr().out.rstrip().splitlines()[-1].endswith("files that read them")


def test_the_layers_are_those_that_imports_are_held_to() -> None:
    names = walks.layers()
    assert names[0] == ["qserve.cli"]
    assert names[-1] == ["qserve.errors"]


def test_a_plan_that_is_refused_is_a_sentence() -> None:
    for words in (["plan", "--nonsense"], ["plan", "./nowhere"]):
        with pytest.raises(SystemExit) as left:
            walks.main(words)
        assert isinstance(left.value.code, str) and left.value.code.count("\n") == 0
