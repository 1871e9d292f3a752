"""Every command with one flag wrong: one sentence on standard error, exit status 2, never a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import io
import sys

import click
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from qserve.cli.main import cli, main

# The least that each command is called with. Nobody listens on port 9, and what would start is cut off below.
BASE = {
    "plan": {"--model": "demo", "--gpu": "rtx-4090"},
    "plan train": {"--method": "ppo", "--model": "Qwen/Qwen3-8B", "--gpu": "h100-80gb"},
    "up": {"--model": "demo"},
    "run": {"--model": "demo"},
    "chat": {"--url": "http://127.0.0.1:9"},
    "ui": {"--port": "0"},
    "eval": {"--url": "http://127.0.0.1:9", "--tasks": "gsm8k"},
    "eval diff": {},
    "compare": {"--model": "demo"},
    "bench": {"--url": "http://127.0.0.1:9"},
    "score": {"--reward": "demo"},
    "reward check": {"--reward": "demo"},
    "eval-reward": {"--reward": "demo"},
    "report": {},
    "runs": {},
    "runs show": {},
    "runs compare": {},
    "runs delete": {},
    "runs residuals": {},
    "models": {},
    "doctor": {},
}
ARGUMENTS = {
    "eval diff": ["nowhere-a", "nowhere-b"],
    "score": ["nowhere.jsonl"],
    "eval-reward": ["nowhere.jsonl"],
    "runs show": ["1"],
    "runs compare": ["1", "2"],
    "runs delete": ["1"],
}
# Written by people, by scripts with an empty variable, and by people who mean harm.
JUNK = (
    "",
    " ",
    "nonsense",
    "-1",
    "0",
    "1.5",
    "nan",
    "-inf",
    "1e400",
    "9" * 40,
    "9" * 5000,
    "=",
    "{",
    "[1",
    ":",
    ",",
    "é",
    "--model",
    "..",
    "/",
    "~nobody",
    "a" * 5000,
    "0" * 300,
    "None",
    "'",
    "\x1b[31m",
    "\n",
    "1,2,x",
    "x=1=2",
    "*",
)
ANYTHING = st.sampled_from(JUNK) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12
)
STATUSES = {0, 1, 2, 3, 4, 5}


class Ran(Exception):
    """The command had accepted everything and would have begun its work."""


def command_of(path: str) -> click.Command:
    command, context = cli, click.Context(cli)
    for name in path.split():
        command = command.get_command(context, name)
    return command


OPTIONS = [
    (path, parameter)
    for path in BASE
    for parameter in command_of(path).params
    if isinstance(parameter, click.Option) and not parameter.hidden
]
VALUED = [(path, option.opts[-1]) for path, option in OPTIONS if not option.is_flag]
# What takes a number, a choice or a file of its own form refuses this; a text may be any.
TYPED = [
    (path, option.opts[-1])
    for path, option in OPTIONS
    if not option.is_flag and not isinstance(option.type, click.types.StringParamType | click.Path)
]
FLAGS = [(path, option.opts[-1]) for path, option in OPTIONS if option.is_flag]


@pytest.fixture(autouse=True, scope="module")
def nothing_starts(tmp_path_factory):
    """What takes seconds or listens is replaced by an exception; state goes to a folder of the test's."""

    def ran(*arguments, **named):
        for one in arguments:
            if asyncio.iscoroutine(one):
                one.close()
        raise Ran

    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("empty")
    patch.chdir(folder)
    patch.setenv("QSERVE_STATE_DIR", str(folder / "state"))
    patch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("torch", "transformers", "lm_eval", "gradio"):
        patch.setitem(sys.modules, name, None)  # as in an installation without them: importing takes seconds
    for name in (
        "qserve.supervisor.serve",
        "qserve.supervisor.service.serve",
        "qserve.ui.process.local_server.serve",
        "qserve.evaluation.tasks.load_tasks",
        "qserve.library.own_server.own_server",
        "uvloop.run",
        "asyncio.run",
        "asyncio.Runner.run",
    ):
        with contextlib.suppress(ImportError, AttributeError):
            patch.setattr(name, ran)
    yield
    patch.undo()


def called(path, arguments):
    """Exit status and what stands on standard error; None as status where the command would have run."""
    said = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        patch.setattr("sys.argv", ["qserve", *path.split(), *arguments, *ARGUMENTS.get(path, [])])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), said.getvalue()
        except Ran:
            return None, said.getvalue()
    raise AssertionError("main returned")


def with_one(path, option, value):
    base = {name: given for name, given in BASE[path].items() if name != option}
    return [*(f"{name}={given}" for name, given in base.items()), f"{option}={value}"]


@pytest.mark.parametrize(("path", "option"), TYPED)
def test_a_wrong_value_is_one_sentence(path, option):
    status, said = called(path, with_one(path, option, "nonsense"))
    assert status == 2, said
    assert said.startswith("qserve: ") and said.count("\n") == 1
    assert option in said


@pytest.mark.parametrize(("path", "option"), TYPED)
def test_a_number_of_forty_digits_is_one_sentence(path, option):
    status, said = called(path, with_one(path, option, "9" * 40))
    assert status == 2, said
    assert said.startswith("qserve: ") and said.count("\n") == 1


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://host", "http://host:99999", "http://[1", "http://a b"])
@pytest.mark.parametrize("path", ["reward check", "eval-reward", "ui", "bench", "report", "chat"])
def test_an_address_that_is_none_is_told_before_anything_is_imported(path, url):
    status, said = called(path, with_one(path, "--url", url))
    assert status == 2 and "'--url'" in said and "http://127.0.0.1:8000" in said


def test_a_server_is_asked_before_a_model_is_loaded_to_compare_with():
    """torch can't be imported here; asking ends the test."""
    assert called("reward check", ["--url=http://127.0.0.1:9", "--model=m"]) == (None, "")


@pytest.mark.parametrize(("path", "option"), FLAGS)
def test_a_flag_with_a_value_is_one_sentence(path, option):
    status, said = called(path, with_one(path, option, "3"))
    assert status == 2
    assert said.count("\n") == 1 and "does not take a value" in said


@pytest.mark.parametrize("path", BASE)
def test_an_unknown_flag_is_one_sentence(path):
    status, said = called(path, ["--no-such-flag", "1"])
    assert status == 2
    assert said.startswith("qserve: No such option '--no-such-flag'") and said.count("\n") == 1
    assert f"(see qserve {path} --help)" in said


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@example(("plan", "--model"), "a" * 5000)
@example(("plan", "--kv-cache-memory-bytes"), "9" * 5000)
@example(("runs", "--state-dir"), "a" * 5000)
@given(st.sampled_from(VALUED), ANYTHING)
def test_whatever_a_flag_holds_there_is_no_traceback(where, value):
    path, option = where
    status, said = called(path, with_one(path, option, value))
    assert status in STATUSES | {None}
    assert "Traceback" not in said
    if status == 2:
        assert said.startswith("qserve: ")
        assert len(said) < 2000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan", "train", "--method", "lorra", "--model", "demo"], "did you mean lora?"),
        (["plan", "train", "--method", "QLoRa2", "--model", "demo"], "did you mean qlora?"),
        (["plan", "train", "--method=grop", "--model=demo"], "did you mean grpo?"),
        (["plan", "--model", "demo", "--engine", "vlm"], "did you mean vllm?"),
        (["plan", "--model", "demo", "--quant", "awqq"], "did you mean awq?"),
        (["paln"], "did you mean plan?"),
        (["runs", "shwo"], "Did you mean 'show'?"),
        (["plan", "--modle", "demo"], "'--model'"),
    ],
)
def test_what_was_probably_meant_is_named(arguments, words):
    status, said = called("", arguments)
    assert status == 2
    assert words in said


@pytest.mark.parametrize("option", ["--max-length", "--micro-batch", "--lora-rank", "--gradient-accumulation-steps"])
def test_training_has_bounds(option):
    status, said = called("plan train", with_one("plan train", option, "99999999999"))
    assert status == 2
    assert "is not in the range" in said
