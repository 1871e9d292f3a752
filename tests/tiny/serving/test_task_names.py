"""What is read from the text of lm-eval's files holds every name that its own index knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.evaluation.task_names import written_names
from qserve.evaluation.tasks import quiet

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")


# Names in lists, in files without a suffix, in groups, in Python, in included templates. All of lm-eval's 14,683 names
# (0.4.13) were compared once; its index of them takes half a minute.
FOLDERS = ("acpbench", "afrixnli", "afrobench", "paloma", "leaderboard", "glue", "gsm8k", "eus_exams", "squadv2")


def test_no_name_of_lm_eval_is_refused() -> None:
    from lm_eval.tasks import TaskManager

    root = Path(lm_eval.__file__).parent / "tasks"
    with quiet():
        manager = TaskManager(include_path=[str(root / name) for name in FOLDERS], include_defaults=False)
    written = written_names([root / name for name in FOLDERS])
    assert len(manager.all_tasks) > 400
    assert not [name for name in manager.all_tasks if name not in written]
