"""What a worker is told, and what it tells."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from qserve.detect import detect
from qserve.hub import resolve
from qserve.planner import make_plan
from qserve.planner.request import PlanRequest
from qserve.worker.base import TcpAddress, UnixAddress
from qserve.worker.process import FAILURE, PHASE, UNKNOWN_STATUS, WorkerSpec, death_of, report_failure, report_phase


def spec() -> WorkerSpec:
    plan = make_plan(resolve("Qwen/Qwen3-0.6B"), detect(), PlanRequest(engine="transformers", max_model_len=512))
    return WorkerSpec(Path("/models/x"), ("x", "alias"), plan, Path("/run/x.sock"), "wk-secret")


def test_a_spec_survives_its_file() -> None:
    told = spec()  # once: the memory that is free now is part of its plan
    assert WorkerSpec.from_json(json.loads(json.dumps(told.to_json()))) == told


def test_a_worker_listens_on_its_socket_unless_it_is_told_a_port() -> None:
    told = replace(spec(), tcp=TcpAddress("10.0.0.7", 20001))
    assert spec().address == UnixAddress(Path("/run/x.sock"))
    assert WorkerSpec.from_json(json.loads(json.dumps(told.to_json()))).address == TcpAddress("10.0.0.7", 20001)


def test_the_internal_key_is_not_shown() -> None:
    assert "wk-secret" not in repr(spec())


def test_a_failure_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    report_phase("loading weights")
    report_failure("two\nlines   and\ttabs")
    assert capsys.readouterr().err == f"{PHASE}loading weights\n{FAILURE}two lines and tabs\n"


@pytest.mark.parametrize(
    ("returncode", "is_outside", "said"),
    [
        (-signal.SIGKILL, False, "SIGKILL (the kernel does this when memory runs out)"),
        (-signal.SIGKILL, True, "SIGKILL (by a person or another program: there was memory)"),
        (-signal.SIGSEGV, False, "killed by SIGSEGV"),
        (3, False, "ended with status 3"),
        (UNKNOWN_STATUS, False, "its status is not known"),
    ],
)
def test_how_a_worker_ended(returncode: int, is_outside: bool, said: str) -> None:
    assert said in death_of(returncode, is_outside=is_outside)
