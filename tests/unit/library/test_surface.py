"""The library's surface is frozen: a name or a parameter that goes is a break for somebody."""

from __future__ import annotations

import contextlib
import inspect
import json
import shlex
import subprocess
import sys

import pytest

import qserve
from qserve.cli.main import cli
from qserve.cli.up.command import command as up_command
from qserve.errors import ModelNotFound, UsageError, WorkerFailed
from qserve.evaluation.comparison.load import LoadFigures
from qserve.library.flags import called, flags_of
from qserve.library.own_server import OwnServer
from qserve.service.request import PACKED_CACHE_GIB
from qserve.units import format_bytes

SIGNATURES = {
    "plan": "(model: 'str | None' = None, *, gpu: 'str | None' = None, **options: 'Any') -> 'Plan'",
    "up": "(model: 'str | None' = None, *, reward: 'str | None' = None, **options: 'Value') -> 'Iterator[Service]'",
    "score": "(records: 'Iterable[Mapping[str, Any]] | str | Path', *, reward: 'str' = 'demo', **options: 'Value')"
    " -> 'list[dict[str, Any]]'",
    "evaluate": "(model: 'str | None' = None, *, url: 'str | None' = None, tasks: 'Sequence[str] | str' = (), "
    "suite: 'str | None' = None, **options: 'Value') -> 'EvalResult'",
    "compare": "(model: 'str | None' = None, *, reward: 'str | None' = None, quants: 'Sequence[str] | str' = "
    "('bf16', 'int8', '4bit'), out: 'str | Path | None' = None, **options: 'Value') -> 'list[Candidate]'",
}
NAMES = ["Candidate", "EvalResult", "Plan", "Service", "__version__", "compare", "evaluate", "plan", "score", "up"]


def test_the_names_are_these():
    assert qserve.__all__ == NAMES
    assert set(NAMES) <= set(dir(qserve))
    assert [name for name in NAMES if getattr(qserve, name) is None] == []  # each can be fetched


@pytest.mark.parametrize("name", SIGNATURES)
def test_the_signatures_are_these(name):
    function = getattr(qserve, name)
    assert str(inspect.signature(function)) == SIGNATURES[name]
    assert "Raises" in function.__doc__ or "raises" in function.__doc__


def test_a_service_has_these():
    public = {name for name in dir(qserve.Service) if not name.startswith("_")}
    assert public | {"url", "api_key", "start_s", "log"} == {
        "api_key",
        "client",
        "log",
        "models",
        "report",
        "score",
        "start_s",
        "url",
    }
    assert "secret" not in repr(qserve.Service("http://127.0.0.1:1", "secret", 1.0, None))


def test_importing_it_costs_nothing():
    code = (
        "import sys, qserve; print([name for name in sys.modules if name.startswith('qserve.')] == ['qserve.version'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize(
    "first", ["import qserve", "import qserve.supervisor", "from qserve.supervisor import ModelDeployment"]
)
def test_up_can_be_called_whatever_was_imported_before(first):
    code = f"{first}\nimport qserve\ntry:\n    qserve.up().__enter__()\nexcept Exception as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("qserve.up serves a model"), done.stdout


def test_a_plan_is_the_commands_plan():
    plan = qserve.plan("Qwen/Qwen3-32B", gpu="rtx-4090", quant="4bit", max_model_len=4096)
    assert isinstance(plan, qserve.Plan) and plan.fits
    assert plan.workload.max_model_len == 4096
    assert plan.devices[0].name == "NVIDIA GeForce RTX 4090"
    assert not {"reward", "where"} & set(plan.to_json())


def test_what_is_measured_and_kept_is_where_the_environment_says(tmp_path, monkeypatch):
    """As for the commands, which read $QSERVE_STATE_DIR themselves."""
    asked = []
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("qserve.service.knowledge.measured_speed", lambda state, *_, **__: asked.append(state))
    with contextlib.suppress(AttributeError):  # nothing was measured
        qserve.plan("demo")
    assert asked == [tmp_path / "qserve"]

    @contextlib.contextmanager
    def own_server(words, log, state_dir, started_by):
        asked.append((log.parent, state_dir))
        yield OwnServer("http://127.0.0.1:9", "key", 1.0)

    monkeypatch.setattr("qserve.library.serving.own_server", own_server)
    for given in ({}, {"state_dir": str(tmp_path / "other")}):
        with qserve.up("demo", **given):
            pass
    other = tmp_path / "other"
    assert asked[1:] == [(tmp_path / "qserve/library", None), (other / "qserve/library", other)]


def test_a_plan_names_the_command_that_serves_it():
    plan = qserve.plan("Qwen/Qwen3-32B", gpu="rtx-4090:2", quant="4bit", max_model_len=4096)
    assert plan.next_command == "qserve up --model Qwen/Qwen3-32B --quant 4bit --max-model-len 4096"
    assert plan.machine == "2 × NVIDIA GeForce RTX 4090"
    here = qserve.plan("demo", gpu="none", enable_prefix_caching=False)
    assert here.next_command == "qserve up --model demo --no-enable-prefix-caching --gpu none"
    assert here.machine == ""


def test_the_command_of_a_plan_has_all_of_its_options_as_the_command_line_takes_them(tmp_path):
    prices, keys = tmp_path / "prices.toml", (tmp_path / "a", tmp_path / "b")
    prices.write_text("[cards]\nrtx-4090 = 0.35\n")
    options = {
        "input_tokens": 100,
        "output_tokens": 20,
        "users": 3,
        "ttft": 2000.0,
        "served_model_name": ("x", "y"),
        "ui": False,
        "enable_prefix_caching": False,
        "strict": False,
        "verbose": True,
        "api_key_file": keys,
        "no_learn": True,
        "packed_cache_gib": None,
    }
    plans = [qserve.plan("demo", gpu="none", prices=file, **options) for file in (prices, str(prices))]
    assert plans[0].next_command == plans[1].next_command
    with up_command.make_context("up", shlex.split(plans[0].next_command)[2:]) as context:
        assert {name: context.params[name] for name in options} == {**options, "packed_cache_gib": PACKED_CACHE_GIB}


@pytest.mark.parametrize(
    "options",
    [
        {"model": "demo", "reward_replicas": 2},
        {"model": "demo", "judge": "pairwise"},
        {"model": "demo", "reward": "demo", "users": 4},
        {"reward": "demo", "quant": "4bit"},
        {"reward": "demo", "tensor_parallel_size": 2},
    ],
)
def test_an_option_that_would_change_nothing_is_refused_as_by_the_command(options):
    with pytest.raises(UsageError, match="leave it out") as refused:
        qserve.plan(gpu="none", **options)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    with pytest.raises(UsageError) as by_command:
        cli.main(["plan", "--gpu", "none", *words], standalone_mode=False)
    assert str(by_command.value).partition(": ")[2] == str(refused.value).partition(": ")[2]


def test_a_map_of_modules_has_no_command():
    plan = qserve.plan("Qwen/Qwen3-8B", gpu="rtx-4090:2", engine="transformers", device_map={"": 0})
    assert plan.fits and plan.next_command == ""


def test_a_notebook_shows_bars_and_what_is_over():
    html = qserve.plan("Qwen/Qwen3-32B", gpu="rtx-4090", quant="4bit")._repr_html_()
    assert html.startswith("<div") and html.count("<div") == html.count("</div>")
    assert "weights" in html and "NVIDIA GeForce RTX 4090" in html and "<script" not in html
    over = qserve.plan("Qwen/Qwen3-32B", gpu="rtx-3060", quant="bf16")
    assert not over.fits and "does not fit" in over._repr_html_()
    assert f"{format_bytes(over.short_bytes)} missing" in over._repr_html_()
    assert "tokens/s (a smaller model; " in over._repr_html_() and "qserve up --model Qwen/Qwen3-32B" in html


def test_a_name_from_a_checkpoint_is_escaped(tmp_path):
    plan = qserve.plan("Qwen/Qwen3-8B", gpu="rtx-4090")
    from dataclasses import replace

    hostile = replace(plan, model=replace(plan.model, id="<img src=x onerror=alert(1)>"))
    assert "<img" not in hostile._repr_html_()


def test_an_option_that_is_none_is_named():
    with pytest.raises(UsageError, match=r"qserve\.plan has no option 'max_len'; it takes .*max_model_len"):
        qserve.plan("demo", max_len=3)
    with pytest.raises(ModelNotFound):
        qserve.plan("./nowhere")
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        qserve.plam  # noqa: B018


def test_options_are_flags():
    options = {"max_model_len": 4096, "ui": False, "enforce_eager": True, "gpu": None, "api_key": ["a", "b"]}
    assert flags_of(options) == ["--max-model-len=4096", "--no-ui", "--enforce-eager", "--api-key=a", "--api-key=b"]


def test_a_commands_mistake_is_its_error():
    with pytest.raises(UsageError, match="No such option '--lenght'"):
        called("plan", "--lenght", "3")
    with pytest.raises(UsageError, match="no server answers"):
        qserve.evaluate(url="http://127.0.0.1:9", suite="offline")
    assert issubclass(WorkerFailed, Exception)


def test_results_print_in_a_line_or_two():
    """An interactive session shows what a call returned: kilobytes hide it."""
    served = {"gsm8k": {"alias": "gsm8k", "exact_match,none": 0.52, "exact_match_stderr,none": 0.02}}
    told = {
        "results": served,
        "samples": {"gsm8k": [{"doc_id": number} for number in range(500)]},
        "n-samples": {"gsm8k": {"effective": 500}},
        "n-shot": {"gsm8k": 5},
        "higher_is_better": {},
    }
    result = qserve.EvalResult({"model": "Qwen/Qwen3-8B", "asked": {}}, told)
    load = LoadFigures(1, 1, 1.0, None, None, 1.0)
    candidate = qserve.Candidate("int8", {}, {"weights_bytes": 9 * 2**30}, 0, 1.0, load, result)
    assert repr(result) == "<EvalResult Qwen/Qwen3-8B, gsm8k>"
    assert str(result).splitlines() == ["Qwen/Qwen3-8B", "gsm8k exact_match 0.5200 ± 0.0200 of 500 items"]
    assert repr(candidate) == "<Candidate int8: accuracy 0.5200, 9.00 GiB of weights>"


def test_a_file_or_a_list_is_scored_and_what_is_neither_is_named(tmp_path):
    recipe, file = tmp_path / "rewards.yaml", tmp_path / "answers.jsonl"
    recipe.write_text("parts:\n- {name: form, rule: regex, pattern: '[.]$'}\n")
    # Line breaks of Unicode, but none of JSON lines.
    split = "\x85\u2028\u2029"
    records = [{"prompt": "p", "response": f"Yes{split}."}, {"nothing": 1}, {"prompt": f"p{split}q", "response": "No"}]
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.warns(UserWarning, match="^1 of 3 lines could not be scored$"):
        found = qserve.score(str(file), reward=str(recipe))
    assert [row.get("reward") for row in found] == [1.0, None, 0.0]
    assert [row.get("response") for row in found] == [record.get("response") for record in records]
    assert found[1]["nothing"] == 1 and "needs messages" in found[1]["error"]
    for wrong, words in (
        (records[0], "this is one record: put it into a list"),
        (["prompt", "response"], r"records\[0\] is str 'prompt'; each record is a dict such as"),
    ):
        with pytest.raises(UsageError, match=words):
            qserve.score(wrong, reward=str(recipe))


@pytest.mark.parametrize("quants", ["bf16, int8,", " bf16,int8,bf16", ("bf16", " int8"), ["bf16", "int8"]])
def test_quantizations_are_read_as_the_command_reads_them(quants, tmp_path, monkeypatch):
    ran, read = [], []
    monkeypatch.setattr("qserve.library.measuring.called", lambda *words: ran.append(words))
    monkeypatch.setattr("qserve.library.measuring.candidates_of", read.extend)
    qserve.compare("demo", quants=quants, out=tmp_path)
    assert read == [tmp_path / "bf16", tmp_path / "int8"]
    assert len(ran) == 1


def test_one_name_is_taken_as_a_list_of_one():
    with pytest.raises(UsageError, match="--tasks nowhere:"):
        qserve.evaluate(url="http://127.0.0.1:9", tasks="nowhere")
    with pytest.raises(UsageError, match="'int9' is fewer than two quantizations"):
        qserve.compare("demo", quants="int9")
