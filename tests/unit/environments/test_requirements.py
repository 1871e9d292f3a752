"""What a requirement file says, and when an environment was made from another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.environments.making import environments, failure, remove
from qserve.environments.place import Environment, made_names
from qserve.environments.requirements import Requirements, known_names, requirements_of
from qserve.errors import UsageError

TEXT = "# Why.\n#: does something\n#: disk cpu 1.5GiB\ntiny==1.0  # the one\n\nother==2\n"


def own(folder: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    (folder / "environments").mkdir(parents=True)
    for name, text in files.items():
        (folder / "environments" / f"{name}.txt").write_text(text)
    monkeypatch.setenv("QSERVE_CONFIGS", str(folder))


def test_a_file_says_what_it_is_for_and_what_it_takes() -> None:
    found = Requirements("tools", Path("tools.txt"), TEXT)
    assert found.purpose == "does something" and found.num_packages == 2
    assert found.disk_bytes("cpu") == 3 << 29 and found.disk_bytes("cuda") == 0


def test_the_digest_is_of_all_that_decides_what_is_installed() -> None:
    first = Requirements("tools", Path("tools.txt"), TEXT)
    changed = Requirements("tools", Path("tools.txt"), TEXT.replace("2", "3"))
    elsewhere = Requirements("others", Path("others.txt"), TEXT)
    assert first.digest("cpu") == elsewhere.digest("cpu")
    assert len({first.digest("cpu"), first.digest("cuda"), changed.digest("cpu")}) == 3


def test_own_files_go_before_those_that_come_with_qserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own(tmp_path, monkeypatch, **{"llm-compressor": TEXT, "mine": "mine==1\n"})
    assert known_names() == ["llm-compressor", "mine"]
    assert requirements_of("llm-compressor").text == TEXT


def test_what_comes_with_qserve_is_pinned() -> None:
    for name in known_names():
        found = requirements_of(name)
        assert found.purpose and found.disk_bytes("cpu") and found.disk_bytes("cuda")
        lines = [line for line in found.text.splitlines() if line and not line.startswith("#")]
        assert lines and all("==" in line for line in lines)


@pytest.mark.parametrize("name", ["llm-compresor", "../llm-compressor", "", "x" * 4000])
def test_an_unknown_name_is_refused_with_those_that_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"there are .*llm-compressor.*QSERVE_CONFIGS"):
        requirements_of(name)


def test_states(tmp_path: Path) -> None:
    requirements = Requirements("tools", Path("tools.txt"), TEXT)
    one = Environment("tools", tmp_path, requirements, "cpu")
    assert one.state() == "not made" and one.num_bytes == 0
    (one.folder / "bin").mkdir(parents=True)
    assert one.state() == "outdated"
    one.python.write_text("")
    one.write_record(one.folder)
    assert one.state() == "ready" and one.num_bytes > 0
    assert Environment("tools", tmp_path, requirements, "cuda").state() == "outdated"
    assert Environment("tools", tmp_path, None, "cpu").state() == "outdated"
    (one.folder / "qserve-environment.json").write_text("[")
    assert one.state() == "outdated"


def test_what_lies_there_is_listed_also_without_its_file(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / ".old.partial-7").mkdir()
    assert made_names(tmp_path) == ["old"]
    assert {one.name: one.state() for one in environments(tmp_path)} == {
        "llm-compressor": "not made",
        "old": "outdated",
    }
    remove("old", tmp_path)
    assert made_names(tmp_path) == []


@pytest.mark.parametrize("name", ["old", "../else"])
def test_what_is_not_made_is_not_removed(tmp_path: Path, name: str) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "else").mkdir()
    with pytest.raises(UsageError, match="is not made; here are: none"):
        remove(name, tmp_path / "root")
    assert (tmp_path / "else").is_dir()


def test_one_in_use_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    with Environment("tools", tmp_path, None, "cpu").used(), pytest.raises(UsageError, match="tools is in use"):
        remove("tools", tmp_path)
    assert (tmp_path / "tools").is_dir()


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (["x NewConnectionError y\n"], "did not find the packages in its index"),
        (["Collecting a\n", "ERROR: No match at https://mirror.example/simple/a\n"], ": No match at <address>; all"),
        (["a\n", "Segmentation fault\n"], "could not be made: Segmentation fault; all of its words: .*tools.log"),
        ([], "it said nothing"),
    ],
)
def test_a_failure_is_one_sentence_without_addresses(tmp_path: Path, said: list[str], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(failure(Environment("tools", tmp_path, None, "cpu"), said))


def test_a_record_holds_no_place_of_the_machine(tmp_path: Path) -> None:
    one = Environment("tools", tmp_path, Requirements("tools", Path("tools.txt"), TEXT), "cpu")
    one.write_record(tmp_path)
    assert set(json.loads((tmp_path / "qserve-environment.json").read_text())) == {"digest", "accelerator"}
