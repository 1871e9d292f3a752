"""`qserve chat` and `qserve run` on a real terminal, with a service that they find by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.terminal import Terminal
from tests.tiny.serving.served import Service

ENVIRONMENT = {"QSERVE_API_KEY": "", "OPENAI_API_KEY": "", "HF_HUB_OFFLINE": "1"}


def test_a_chat_on_a_terminal(service: Service, tmp_path: Path) -> None:
    """It is found through the run store, answers, and remembers what was typed."""
    terminal = Terminal(sys.executable, "-m", "qserve", "chat", "--state-dir", str(service.state), **ENVIRONMENT)
    for typed, shown in (
        ("/set temperature 0\n", "0.0"),
        ("What is 12+30?\n", "42"),
        ('"""What is\n', "... "),
        ('5+6?"""\n', "11"),
        ("\x03", "/bye or Ctrl-D leaves"),
        (f"/save {tmp_path}/chat.json\n", "saved: "),
    ):
        if not typed.startswith("5+6"):
            terminal.until(">>> ")
        terminal.type(typed)
        if "\n" in typed:
            terminal.until("\n")  # the terminal shows what was typed, too
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
