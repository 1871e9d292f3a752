"""`qserve chat` and `qserve run` on a real terminal, with a service that they find by themselves."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.tiny.serving.served import Service

LIMIT_S = 60
ENVIRONMENT = {"QSERVE_API_KEY": "", "OPENAI_API_KEY": "", "HF_HUB_OFFLINE": "1", "TERM": "dumb", "COLUMNS": "80"}


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, *command: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, **ENVIRONMENT})
        self.screen = ""
        self._read = 0

    def until(self, text: str) -> None:
        """Read on until the screen shows this behind what was waited for before."""
        began = time.monotonic()
        while text not in self.screen[self._read :]:
            assert time.monotonic() - began < LIMIT_S, f"{text!r} is not on the screen: {self.screen}"
            if select.select([self._end], [], [], 0.1)[0]:
                self.screen += os.read(self._end, 65536).decode()
        self._read = self.screen.index(text, self._read) + len(text)

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def status(self) -> int:
        """Of its end."""
        try:
            while os.read(self._end, 65536):
                pass
        except OSError:  # the other side is closed
            pass
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_a_chat_on_a_terminal(service: Service, tmp_path: Path) -> None:
    """It is found through the run store, answers line by line, and remembers what was typed."""
    terminal = Terminal(sys.executable, "-m", "qserve", "chat", "--state-dir", str(service.state))
    for typed, shown in (
        ("/set temperature 0\n", "0.0"),
        ("What is 12+30?\n", "42"),
        ('"""What is\n', "... "),
        ('5+6?"""\n', "11"),
        ("\x03", "/bye or Ctrl-D leaves"),
        (f"/save {tmp_path}/chat.json\n", "saved: "),
    ):
        if shown != "11":
            terminal.until(">>> ")
        terminal.type(typed)
        if "\n" in typed:
            terminal.until("\n")  # what was typed is shown, too
        terminal.until(shown)
    terminal.until(">>> ")
    terminal.type("\x04")
    assert terminal.status() == 0
    assert "5+6?" in (tmp_path / "chat.json").read_text()
    kept = service.state / "qserve" / "chat_history"
    assert "What is 12+30?" in kept.read_text() and kept.stat().st_mode & 0o077 == 0


def test_run_takes_the_service_that_has_the_model(service: Service) -> None:
    runs = list((service.state / "qserve" / "runs").iterdir())
    command = [sys.executable, "-m", "qserve", "run", "demo", "What is 12+30?", "--state-dir", str(service.state)]
    done = subprocess.run(
        command, input="", capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT}
    )
    assert (done.returncode, done.stdout) == (0, "42\n"), done.stderr
    assert list((service.state / "qserve" / "runs").iterdir()) == runs, "a second one was started"
