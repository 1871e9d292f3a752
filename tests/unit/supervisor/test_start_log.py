"""The part of a worker's log that its start wrote, and what a service that takes it over has of it."""

from __future__ import annotations

from pathlib import Path

from qserve.supervisor.start_log import StartLog


def test_the_last_start_is_handed_on_and_handed_on_again(tmp_path: Path) -> None:
    file = tmp_path / "chat.log"
    log = StartLog(file)
    log.begins()
    file.write_text("first start\n")
    log.ends()
    file.write_text("first start\nit served\nsecond")  # and was restarted while it wrote
    log.begins()
    with file.open("a") as more:
        more.write(" start\n ready \n")
    log.ends()
    with file.open("a") as more:
        more.write("it serves\n")
    for name in ("next.log", "last.log"):
        heard: list[str] = []
        taken = StartLog(tmp_path / name)
        taken.copy_from(log.file, log.span, heard.append)
        assert heard == ["start", "ready"] and taken.file.read_text() == " start\n ready \n"
        log = taken


def test_a_log_that_is_gone_leaves_figures_missing_and_nothing_else(tmp_path: Path) -> None:
    taken = StartLog(tmp_path / "chat.log")
    taken.copy_from(tmp_path / "gone.log", (0, 5), lambda line: None)
    assert taken.span == (0, 0) and not taken.file.exists()
