"""The suites that come along can be read; what can't be says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.evaluation import suites


def test_the_bundled_suites() -> None:
    assert set(suites.suites()) >= {"offline", "quick", "quality", "math", "chinese", "long"}
    for name in suites.suites():
        suite = suites.load(name)
        assert suite.tasks
        assert suite.about


def test_only_these_suites_need_no_network_and_their_tasks_lie_beside_them() -> None:
    offline = [name for name in suites.suites() if not suites.load(name).needs_network]
    assert offline == ["offline", "thinking"]
    (folder,) = suites.task_folders()
    texts = [path.read_text() for path in folder.rglob("*.yaml")]
    for task in [task for name in offline for task in suites.load(name).tasks]:
        assert any(f"task: {task}\n" in text for text in texts), task


def test_an_unknown_suite_names_near_ones() -> None:
    with pytest.raises(UsageError, match="offline"):
        suites.load("ofline")


@pytest.mark.parametrize(
    ("text", "words"),
    [("limit: 3", "tasks"), ("tasks: [a]\nlimits: 3", "limits"), ("[", "YAML"), ("tasks: []", "tasks")],
)
def test_a_broken_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        suites.load(str(file))
