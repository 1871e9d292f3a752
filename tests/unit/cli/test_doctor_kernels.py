"""`qserve doctor` says whether the cards of this machine take the engine's own kernels."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.doctor.checks import Check
from qserve.cli.doctor.command import _kernels
from qserve.cli.doctor.kernels import TRIAL, as_last_start_told, tried_now
from qserve.cli.main import cli
from qserve.detect.packages import Packages
from qserve.engines.transformers.kernels.refusals import COSTS, refusal
from tests.unit.engines.vllm.builders import hardware
from tests.unit.runs.kept import writer

REFUSED = refusal("rotate_and_store", "AttributeError: 'dtype' object has no attribute 'type'")
TRIED = ["add_rms_norm", "rotate_and_store", "CUDA graph capture"]


def say(text: str, status: int = 0) -> tuple[str, ...]:
    return sys.executable, "-c", f"import sys; print({text!r}); print('the last word', file=sys.stderr); exit({status})"


def test_each_refused_kernel_has_a_line_and_the_others_one() -> None:
    card = json.dumps({"card": "NVIDIA H100", "tried": TRIED, "refused": [asdict(REFUSED)]})
    warning, ok = tried_now(command=say(f"a library's word\n{card}"))
    assert warning.state == "warning" and warning.found == f"NVIDIA H100: {REFUSED}" and TRIAL in warning.remedy
    assert COSTS["rotate_and_store"] in warning.found
    assert (ok.state, ok.found) == ("ok", "NVIDIA H100: add_rms_norm, CUDA graph capture compile and are right")


def test_a_trial_that_fails_or_hangs_or_sees_no_card_is_told() -> None:
    assert tried_now(command=say("", 1))[0].found == "the kernels could not be tried: the last word"
    assert "torch sees no card" in tried_now(command=say(""))[0].found
    (slow,) = tried_now(0.2, (sys.executable, "-c", "import time; time.sleep(60)"))
    assert slow.state == "warning" and "within 0 s" in slow.found


def a_run(folder: Path, name: str, *refused: Any, devices: int = 1, moment: str = "ready") -> None:
    run = writer(folder, name)
    kernels = {"path": "dense layers, captured", "refused": [asdict(one) for one in refused]}
    run.memory("chat", moment, {"devices": [{"bytes": 1}] * devices, "kernels": kernels})
    run.close(0)


def test_the_last_start_on_a_card_is_told(tmp_path: Path) -> None:
    assert as_last_start_told(tmp_path)[0].found.startswith("not tried yet")
    assert list(tmp_path.iterdir()) == []  # reading makes no store
    a_run(tmp_path, "20261121-120000-1", REFUSED)
    (check,) = as_last_start_told(tmp_path)
    assert (check.state, check.found) == ("warning", f"in run 20261121-120000-1: {REFUSED}")
    assert "qserve doctor --kernels" in check.remedy
    a_run(tmp_path, "20261122-120000-1")
    (check,) = as_last_start_told(tmp_path)
    assert (check.state, check.found) == ("ok", "no card refused any in run 20261122-120000-1")
    a_run(tmp_path, "20261123-120000-1", REFUSED, devices=0)  # on a CPU: says nothing of cards
    assert as_last_start_told(tmp_path) == [check]


def test_a_store_that_can_t_be_read_is_told(tmp_path: Path) -> None:
    from qserve.runs.database import FILE_NAME

    (tmp_path / FILE_NAME).mkdir()
    assert "can't be read" in as_last_start_told(tmp_path)[0].found


def test_a_machine_without_a_card_hears_nothing_of_it(tmp_path: Path) -> None:
    packages = Packages({"torch": "2.13.0", "transformers": "5.19.0", "accelerate": "1.15.0"})
    assert _kernels(tmp_path, hardware(), packages, is_wanted=False) == []
    assert _kernels(tmp_path, hardware("rtx-4090"), Packages({}), is_wanted=False) == []
    (check,) = _kernels(tmp_path, hardware("rtx-4090"), packages, is_wanted=False)
    assert isinstance(check, Check) and check.name == "kernels"


def test_the_flag_needs_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    import qserve.detect

    monkeypatch.setattr(qserve.detect, "detect", lambda *_: hardware())
    done = CliRunner().invoke(cli, ["doctor", "--kernels"])
    assert done.exit_code != 0 and "--kernels" in str(done.exception or done.output)
