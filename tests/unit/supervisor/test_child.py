"""A worker's process can be handed to another service, and ends when no service holds it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from qserve.supervisor.child import Child, Descriptors
from qserve.worker.process import UNKNOWN_STATUS

# Held by its lifeline, in a loop that never comes back to Python's own handlers.
SAYS = (
    "import sys; from qserve.worker.process import end_with_service; end_with_service(); print('up', flush=True)\n"
    "for line in open(sys.argv[1]): print(line, end='', flush=True)\n"
    "while True: pass"
)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.01)


async def started(folder: Path, heard: list[str]) -> tuple[Child, Path]:
    fifo = folder / "lines"
    os.mkfifo(fifo)
    command = (sys.executable, "-c", SAYS, str(fifo))
    child = await Child.start(command, os.environ, folder / "old.log", heard.append)
    await until(lambda: heard == ["up"])
    return child, fifo


def copied(ends: Descriptors) -> Descriptors:
    """As another process gets them."""
    return Descriptors(ends.process, os.dup(ends.lifeline), os.dup(ends.output))


async def test_another_service_adopts_it_and_hears_it(tmp_path: Path) -> None:
    heard: list[str] = []
    old, fifo = await started(tmp_path, heard)
    old.pause()
    heard_later: list[str] = []
    new = await Child.adopt(old.pid, copied(old.descriptors()), tmp_path / "new.log", heard_later.append)
    old.let_go()
    with fifo.open("w") as lines:
        lines.write("said later\n")
    await until(lambda: heard_later == ["said later"])
    assert heard == ["up"]
    assert (tmp_path / "new.log").read_text() == "said later\n"
    assert new.returncode is None
    os.kill(new.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        await new.ended()
    assert new.returncode == UNKNOWN_STATUS
    await new.reap()


async def test_what_was_adopted_can_be_ended_and_handed_on(tmp_path: Path) -> None:
    old, _ = await started(tmp_path, [])
    old.pause()
    new = await Child.adopt(old.pid, copied(old.descriptors()), tmp_path / "new.log", print)
    old.let_go()
    third = await Child.adopt(old.pid, copied(new.descriptors()), tmp_path / "third.log", print)
    await third.end()
    assert third.returncode == UNKNOWN_STATUS
    await until(lambda: new.returncode == UNKNOWN_STATUS)
    await new.reap()


async def test_it_is_killed_as_soon_as_nobody_holds_it(tmp_path: Path) -> None:
    old, _ = await started(tmp_path, [])
    ends = copied(old.descriptors())
    old.let_go()
    await asyncio.sleep(0.2)
    assert old.returncode is None, "another service holds it"
    os.close(ends.lifeline)
    async with asyncio.timeout(10):
        await old.ended()
    assert old.returncode == -signal.SIGKILL
    os.close(ends.process)
    os.close(ends.output)


async def test_its_output_is_read_again_where_it_was_not_handed_over(tmp_path: Path) -> None:
    heard: list[str] = []
    old, fifo = await started(tmp_path, heard)
    old.pause()
    with fifo.open("w") as lines:
        lines.write("meanwhile\n")
    await asyncio.sleep(0.2)
    assert heard == ["up"]
    old.resume()
    await until(lambda: heard == ["up", "meanwhile"])
    await old.end()
