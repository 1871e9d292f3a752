"""All inputs of a command that takes minutes are checked before its first start and first request: exit status 2."""

from __future__ import annotations

import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from qserve.cli.batch.endpoints import ENDPOINTS, WINDOW
from qserve.cli.main import cli
from qserve.errors import DoesNotFit, UsageError
from qserve.evaluation.tasks import Tasks, TaskSpec
from qserve.wire.batches import BatchEndpoint, CreateBatchRequest
from tests.unit.evaluation.answering import answering

TASKS = Tasks((TaskSpec("t", "t", frozenset({"generate_until"})),), None)
REQUEST = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", "messages": []}}
COMPARE = ("compare", "--model", "demo", "--suite", "offline")
EVAL = ("eval", "--model", "demo", "--tasks", "t")
OTHER = {"tasks": ["another"]}
UNWRITABLE = "/proc/nowhere"


class Started(Exception):
    """The checks let something through."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with files that the cases name; nothing can start."""

    def started(*_: object) -> None:
        raise Started

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("qserve.cli.compare.steps.own_server", started)
    monkeypatch.setattr("qserve.cli.eval.server.own_server", started)
    monkeypatch.setattr("qserve.evaluation.tasks.check_lm_eval", lambda: None)
    monkeypatch.setattr("qserve.evaluation.tasks.load_tasks", lambda *_: TASKS)
    (tmp_path / "file").write_text("")
    (tmp_path / "requests.jsonl").write_text(json.dumps(REQUEST) + "\n")
    (tmp_path / "other.jsonl").write_text(json.dumps({**REQUEST, "url": "/v1/nothing"}) + "\n")
    (tmp_path / "kept" / "int8" / "cache").mkdir(parents=True)
    (tmp_path / "kept" / "int8" / "cache" / "answers.db").touch()
    (tmp_path / "kept" / "int8" / "asked.json").write_text(json.dumps(OTHER))
    return tmp_path


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server's URL, and the paths that it was asked for."""
    paths: list[str] = []

    def answer(path: str, body: Any) -> tuple[int, Any]:
        paths.append(path)
        return 404, {}

    with answering(answer) as url:
        yield url, paths


def called(*arguments: str) -> Exception:
    with pytest.raises((UsageError, DoesNotFit, click.ClickException)) as caught:
        cli.main(list(arguments), prog_name="qserve", standalone_mode=False)
    return caught.value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*COMPARE, "--quants", "bf16,int9"), "int9' is not a quantization (did you mean int8?)"),
        ((*COMPARE, "--quants", "bf16,int8,awq"), "awq: --quant awq of demo"),
        ((*COMPARE, "--quants", "bf16"), "fewer than two"),
        (("compare", "--model", "./nowhere", "--suite", "offline"), "there is no folder"),
        ((*COMPARE, "--up-args", "--nonsense"), "No such option '--nonsense'"),
        ((*COMPARE, "--up-args", "--engine vlm"), "'vlm' is not one of"),
        ((*COMPARE, "--up-args", "--dtype 'open"), "can't be read"),
        (("compare", "--model", "demo", "--suite", "offlin"), "did you mean offline?"),
        ((*COMPARE, "--prices", "nowhere.toml"), "does not exist"),
        ((*COMPARE, "--prices", "file"), "empty"),
        ((*COMPARE, "--out", UNWRITABLE), "can't be written"),
        ((*COMPARE, "--out", "file"), "can't be written"),
        ((*COMPARE, "--quants", "bf16,int8", "--out", "kept"), "contains another comparison"),
        (("compare", "--reward", "demo", "--preferences", "nowhere.jsonl"), "no such file"),
        (("compare", "--reward", "demo", "--quants", "bf16,int9"), "is not a quantization"),
        ((*EVAL, "--quant", "int9"), "did you mean int8?"),
        ((*EVAL, "--up-args", "--nonsense"), "No such option '--nonsense'"),
        ((*EVAL, "--out", UNWRITABLE), "can't be written"),
        ((*EVAL, "--state-dir", UNWRITABLE), "can't be written"),
        ((*EVAL, "--gen-kwargs", "n=4"), "--num-samples"),
        ((*EVAL, "--served-model-name", "other"), "is for a running server"),
        (("eval", "--model", "demo", "--suite", "offlin"), "did you mean offline?"),
        (("eval", "--model", "./nowhere", "--tasks", "t"), "there is no folder"),
        (("eval", "--url", "nonsense", "--tasks", "t"), "is not the address of a server"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nothing_is_started_for_what_will_be_refused(folder: Path, arguments: tuple[str, ...], words: str) -> None:
    error = called(*arguments)
    assert words in str(error) or words in getattr(error, "message", "")
    assert getattr(error, "exit_status", getattr(error, "exit_code", None)) == 2


def test_a_quantization_that_does_not_fit_is_told_first(folder: Path) -> None:
    big = ("compare", "--model", "Qwen/Qwen3-32B", "--suite", "offline", "--up-args", "--max-model-len 8000000")
    error = called(*big, "--quants", "4bit,bf16")
    assert str(error).startswith("4bit: ") and error.exit_status in (2, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize("arguments", [COMPARE, EVAL], ids=lambda value: value[0])
def test_what_is_right_is_started(folder: Path, arguments: tuple[str, ...]) -> None:
    with pytest.raises(Started):
        cli.main(list(arguments), prog_name="qserve", standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("bench", "--extra-body", "{"), "not valid JSON"),
        (("bench", "--extra-body", "[1]"), "not a JSON object"),
        (("bench", "--dataset", "nowhere.json"), "no such file"),
        (("bench", "--dataset", "file"), "empty"),
        (("bench", "--tokenizer", "nowhere"), "there is no tokenizer.json"),
        (("bench", "--output", f"{UNWRITABLE}/x"), "can't be written"),
        (("bench", "--csv", "file/x"), "can't be written"),
        (("bench", "--goodput", "speed:1"), "speed"),
        (("batch", "nowhere.jsonl"), "no such file"),
        (("batch", "file"), "empty"),
        (("batch", "other.jsonl"), "'/v1/nothing' is not a route for batches"),
        (("batch", "requests.jsonl", "--endpoint", "/v1/nothing"), "is not one of"),
        (("batch", "requests.jsonl", "--completion-window", "soon"), "is not a duration"),
        (("batch", "requests.jsonl", "--output", "file/x"), "can't be written"),
        (("batch", "requests.jsonl", "--errors", f"{UNWRITABLE}/x"), "can't be written"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_nothing_is_asked_for_what_will_be_refused(
    folder: Path, asked: tuple[str, list[str]], arguments: tuple[str, ...], words: str
) -> None:
    url, paths = asked
    error = called(*arguments, "--url", url)
    assert words in str(error) or words in getattr(error, "message", "")
    assert getattr(error, "exit_status", getattr(error, "exit_code", None)) == 2
    assert not paths


def test_a_client_of_batches_checks_by_the_servers_rules() -> None:
    assert typing.get_args(BatchEndpoint) == ENDPOINTS
    pattern = CreateBatchRequest.model_fields["completion_window"].metadata[0].pattern
    assert pattern == f"^{WINDOW.pattern}$"
