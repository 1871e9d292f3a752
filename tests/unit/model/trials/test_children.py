"""Real processes with a fault in each: whatever a kernel does to its own, the verdict is told, and others are tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.model.trials import children
from qserve.model.trials.children import first_right, in_children
from qserve.model.trials.verdicts import Trial, Verdict
from tests.unit.model.trials.faulty import trial


def calls(log: Path) -> list[list[str]]:
    """Process and name of each trial that ran."""
    return [line.split(maxsplit=1) for line in log.read_text().splitlines()]


def test_all_that_is_well_runs_in_one_process(tmp_path: Path) -> None:
    log = tmp_path / "log"
    groups = [[trial("a", log=str(log)), trial("b", log=str(log))], [trial("prints", log=str(log))]]
    assert in_children("cpu", groups) == {
        groups[0][0]: Verdict(result=["cpu", "a"]),
        groups[1][0]: Verdict(result=["cpu", "prints"]),
    }
    assert [name for _, name in calls(log)] == ["a", "prints"] and len({pid for pid, _ in calls(log)}) == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("segfaults", "its trial ended with SIGSEGV"),
        ("exits", "its trial ended with status 3"),
        ("is killed", "its trial ended with SIGKILL"),
        ("is wrong", "it is wrong on this card"),
        ("hangs", "its trial did not end within 2 s"),
    ],
)
def test_the_next_is_tried_after_one_that_fails(tmp_path: Path, fault: str, reason: str) -> None:
    log = tmp_path / "log"
    group = [trial(name, log=str(log)) for name in ("is not there", fault, "right", "not wanted")]
    verdicts = in_children("cpu", [group], most_s=2)
    assert [verdicts.get(one) for one in group] == [
        Verdict("it is not installed", is_absent=True),
        Verdict(reason, is_lasting=fault != "is killed"),
        Verdict(result=["cpu", "right"]),
        None,
    ]
    assert first_right(group, verdicts) == group[2]
    assert len({pid for pid, _ in calls(log)}) == (1 if fault == "is wrong" else 2)


def test_a_kernel_that_ended_its_process_is_not_tried_at_other_shapes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    groups = [[trial(name, log=str(log), size=size)] for size in (1, 2, 3) for name in ("segfaults", "right")]
    verdicts = in_children("cpu", groups)
    assert {one.name: verdict.reason for one, verdict in verdicts.items()} == {
        "segfaults": "its trial ended with SIGSEGV",
        "right": "",
    }
    assert len(verdicts) == 6 and [name for _, name in calls(log)] == ["segfaults", "right", "right", "right"]


def test_what_raises_is_told_in_a_line_and_written_out_whole(capfd: pytest.CaptureFixture[str]) -> None:
    broken = Trial.of("no", "tests.unit.model.trials.faulty:no_such_function")
    assert in_children("cpu", [[broken]])[broken].reason.startswith("AttributeError: module")
    assert "Traceback" in capfd.readouterr().err


def test_a_process_that_can_t_start_refuses_all_for_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "_PROCESS", "qserve.model.trials.no_such_process")
    groups = [[trial("a")], [trial("b")]]
    verdicts = in_children("cpu", groups)
    reason = "the process that tries kernels ended with status 1 before the first"
    assert set(verdicts) == {groups[0][0], groups[1][0]}
    assert set(verdicts.values()) == {Verdict(reason, is_lasting=False)}
