"""A misspelt task is refused from the text of lm-eval's files, before lm-eval is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.evaluation.suites import suites, task_folders
from qserve.evaluation.task_names import check_names, written_names

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")


def test_a_misspelt_name_has_near_matches() -> None:
    with pytest.raises(UsageError, match=r"--tasks gsm9k: lm-eval has no task of that name; near matches: .*gsm8k"):
        check_names(("gsm9k",))


def test_names_groups_tags_and_wildcards_pass() -> None:
    check_names(("gsm8k", "mmlu", "arc_challenge", "hellaswag", "acp_bench", "paloma", "mmlu_*", "leaderboard"))


def test_names_stand_in_any_form_of_yaml(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text('"task": one  # a comment\ngroup: [two, "three"]\ntag:\n  - four\n')
    (tmp_path / "_b_yaml").write_text("task_list:\n- task: five\n")
    assert {"one", "two", "three", "four", "five"} <= written_names([tmp_path])


def test_ours_are_found_without_reading_lm_evals_thousands(monkeypatch: pytest.MonkeyPatch) -> None:
    known = written_names(task_folders())
    monkeypatch.setattr("qserve.evaluation.task_names.written_names", lambda folders: set(known))
    assert "offline" in suites()
    check_names([name for name in known if name.startswith("qserve_")])


def test_the_command_refuses_before_anything_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom qserve.cli.main import cli\n"
        "try:\n    cli.main(['eval', '--tasks', 'gsm9k'], standalone_mode=False)\n"
        "except Exception as error:\n    print(type(error).__name__, 'lm_eval' in sys.modules)"
    )
    environment = {**os.environ, "QSERVE_STATE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.split() == ["UsageError", "False"], done.stderr
