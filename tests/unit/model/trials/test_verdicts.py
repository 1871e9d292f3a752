"""The file that keeps verdicts: found again, for what they hold for, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.model.trials.verdicts import KeptVerdicts, Verdict
from tests.unit.model.trials.faulty import trial

ABOUT = {"card": "a card", "driver": "580.65.06", "packages": {"torch": "2.13.0", "triton": None}}
RIGHT, REFUSED = Verdict(result={"seconds": 0.1}), Verdict("its trial ended with SIGSEGV")


def test_verdicts_are_found_again_and_added_to(tmp_path: Path) -> None:
    kept = KeptVerdicts(tmp_path / "new" / "card.json", ABOUT)
    assert kept.find() == {}
    kept.add({"one": RIGHT})
    kept.add({"two": REFUSED, "later": Verdict("out of memory", is_lasting=False)})
    assert kept.find() == {"one": RIGHT, "two": REFUSED}
    assert sorted(path.name for path in kept.path.parent.iterdir()) == ["card.json", "card.lock"]


@pytest.mark.parametrize("changed", [{"driver": "590.1"}, {"packages": {"torch": "2.14.0", "triton": None}}])
def test_under_another_driver_or_release_none_holds(tmp_path: Path, changed: dict[str, object]) -> None:
    path = tmp_path / "card.json"
    KeptVerdicts(path, ABOUT).add({"one": RIGHT})
    other = KeptVerdicts(path, {**ABOUT, **changed})
    assert other.find() == {}
    other.add({"two": REFUSED})
    assert other.find() == {"two": REFUSED} and KeptVerdicts(path, ABOUT).find() == {}


@pytest.mark.parametrize("text", ["", "[]", '{"about": 1}', '{"verdicts": {"one": {"unknown": 1}}, "about": null}'])
def test_a_damaged_file_is_said_and_made_anew(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptVerdicts(tmp_path / "card.json", ABOUT)
    kept.path.write_text(
        text.replace(
            "null", '{"card": "a card", "driver": "580.65.06", "packages": {"torch": "2.13.0", "triton": null}}'
        )
    )
    assert kept.find() == {}
    kept.add({"one": RIGHT})
    assert kept.find() == {"one": RIGHT}


def test_a_file_that_others_may_write_to_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = KeptVerdicts(tmp_path / "card.json", ABOUT)
    kept.add({"one": RIGHT})
    kept.path.chmod(0o666)
    assert kept.find() == {} and "another user may write to it" in caplog.text


def test_where_nothing_can_be_kept_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    KeptVerdicts(tmp_path / "file" / "card.json", ABOUT).add({"one": RIGHT})
    assert "the next start tries them again" in caplog.text


def test_a_trial_is_named_by_its_arguments_whatever_their_order() -> None:
    assert trial("one", a=1, b=[2]) == trial("one", b=[2], a=1)
    assert trial("one", a=1).key != trial("one", a=2).key and trial("one", a=1).kernel == trial("one", a=2).kernel
