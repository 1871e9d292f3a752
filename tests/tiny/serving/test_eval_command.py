"""`qserve eval` as a user runs it, against the served demo in float32: kept, interrupted, and with its own server.

The one that is interrupted is a process of its own; the others are called in this one, which imports lm-eval once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qserve.cli.main import cli
from qserve.errors import QserveError
from qserve.evaluation.comparison.diff import compare
from qserve.evaluation.results import EvalResult
from qserve.runs import RunStore
from tests.tiny.serving.called_here import said
from tests.tiny.serving.held_up import HeldUp
from tests.tiny.serving.served import START_LIMIT_S, Service, until

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")
pytestmark = pytest.mark.filterwarnings("default")  # what lm-eval's packages warn of is theirs

LIMIT = 24
TASKS = ("qserve_demo_choice", "qserve_demo_generate", "qserve_demo_text")
NUM_PASSING = 5
"""POSTs that come through before the interruption: the preflight's two, and some answers."""


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("qserve")), *arguments]


def environment(folder: Path) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "datasets"), "TOKENIZERS_PARALLELISM": "false"}


def evaluated(folder: Path, name: str, *arguments: str) -> tuple[EvalResult, str]:
    text = said(
        "eval",
        "--suite",
        "offline",
        "--limit",
        str(LIMIT),
        "--state-dir",
        str(folder / "state"),
        "--out",
        str(folder / name),
        *arguments,
    )
    return EvalResult.load(folder / name), text


def assert_same(one: EvalResult, other: EvalResult) -> None:
    """Every answer the same, every score but for what a BLAS may make of rows in another order."""
    for diff in compare(one, other):
        assert diff.num_items == LIMIT and not diff.flips, diff
        assert diff.drift is None or diff.drift.largest < 1e-4, diff
    texts = ([sample["filtered_resps"] for _, sample in sorted(of.samples(TASKS[1]).items())] for of in (one, other))
    assert next(texts) == next(texts)
    values = [[score.value for score in of.scores()] for of in (one, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("eval")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(made).items():
            patch.setenv(name, value)
        yield made


@pytest.fixture(scope="module")
def first(service: Service, folder: Path) -> tuple[EvalResult, str]:
    return evaluated(folder, "first", "--url", service.url)


@pytest.fixture
def held_up(service: Service) -> Iterator[HeldUp]:
    proxy = HeldUp(service.url, NUM_PASSING)
    yield proxy
    proxy.close()


def test_the_table_has_standard_errors_and_the_result_all_of_lm_eval(first: tuple[EvalResult, str]) -> None:
    result, text = first
    assert "± stderr" in text and "qserve_demo_choice" in text
    assert "lm-eval:" not in text, "hints about flags of lm-eval's own command"
    assert {"results", "samples", "configs", "versions", "n-shot", "higher_is_better"} <= set(result.lm_eval)
    assert {task: len(result.samples(task)) for task in TASKS} == dict.fromkeys(TASKS, LIMIT)
    about = result.about
    assert (about["model"], about["engine"], about["scheme"], about["dtype"]) == (
        "demo",
        "transformers",
        "bf16",
        "float32",
    )
    assert about["seed"] == 1234 and about["versions"]["lm-eval"] and about["devices"] and about["template_hash"]


def test_the_result_is_in_the_run_store(first: tuple[EvalResult, str], folder: Path) -> None:
    stored = RunStore.open(folder / "state" / "qserve").evals()[0]
    assert stored.name == "offline"
    assert stored.document["lm_eval"]["results"] == first[0].lm_eval["results"]
    assert stored.run == first[0].about["run"]


def heed_ctrl_c() -> None:
    """A shell's background jobs, this test run perhaps, are started deaf to it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_interrupted_in_the_middle_it_goes_on(
    first: tuple[EvalResult, str], service: Service, held_up: HeldUp, folder: Path
) -> None:
    state = folder / "interrupted"
    arguments = ("eval", "--suite", "offline", "--limit", str(LIMIT), "--state-dir", str(state))
    process = subprocess.Popen(
        command(*arguments, "--url", held_up.url),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=heed_ctrl_c,
    )
    try:
        until(lambda: held_up.num_held > 0 and kept(state) > 0, START_LIMIT_S, "no answer is kept as it comes")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=START_LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, output
    assert "to continue: qserve eval --suite offline" in output and "Traceback" not in output
    num_kept = kept(state)
    text = said(*arguments, "--url", service.url, "--out", str(folder / "resumed"))
    assert f"Continuing: {num_kept} answers" in text
    resumed = EvalResult.load(folder / "resumed")
    assert resumed.about["num_answers_kept"] == num_kept
    assert_same(resumed, first[0])
    shown = json.loads(said("eval", "diff", str(folder / "first"), str(folder / "resumed"), "--json"))["tasks"]
    assert [one["task"] for one in shown] == list(TASKS)
    assert all(one["num_changed"] == 0 and one["flips"] == [] and one["p_value"] == 1.0 for one in shown)
    assert "drift" in said("eval", "diff", str(folder / "first"), str(folder / "resumed"))
    assert kept(state) == 0  # a finished evaluation leaves no answers behind: the next one asks anew


def kept(state: Path) -> int:
    """Answers in the cache of the state folder's only evaluation."""
    for file in (state / "qserve" / "eval-cache").glob("*.db"):
        try:
            with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
                return int(connection.execute("SELECT COUNT(*) FROM unnamed").fetchone()[0])
        except sqlite3.OperationalError:  # not yet made
            return 0
    return 0


def test_a_server_of_its_own_is_planned_for_it_and_ends_with_it(folder: Path) -> None:
    result, text = evaluated(
        folder, "own", "--model", "demo", "--tasks", "qserve_demo_choice", "--up-args", "--dtype float32"
    )
    assert "ready after" in text
    run = RunStore.open(folder / "state" / "qserve").run(result.about["run"])
    assert "--prompt-logprobs" in run.command
    assert (run.state, run.exit_status) == ("ended", 0)
    assert len(result.samples("qserve_demo_choice")) == LIMIT


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--url", "http://127.0.0.1:1", "--model", "demo"), "give one of them"),
        (("--quant", "4bit"), "name its model with --model"),
        (("--url", "http://127.0.0.1:1"), "no server answers"),
        (("--model", "/nowhere/at/all"), "there is no folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str, folder: Path) -> None:
    """In this process: one of its own would do nothing but import."""
    with pytest.raises(QserveError, match=words) as caught:
        cli.main(["eval", "--suite", "offline", "--state-dir", str(folder / "bad"), *arguments], standalone_mode=False)
    assert caught.value.exit_status == 2
