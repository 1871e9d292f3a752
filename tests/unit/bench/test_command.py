"""The flags of `qserve bench`: what does not go together is a sentence, before anything is asked."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import click
import pytest
from rich.console import Console

from qserve.bench.endpoints import ENDPOINTS, Endpoint, Prompt
from qserve.bench.load import Stage
from qserve.bench.metrics import figures_of
from qserve.bench.result import BenchResult
from qserve.bench.self_test import Check
from qserve.cli.bench.command import command
from qserve.cli.bench.show import show_result
from qserve.cli.writable import check_file_writable
from qserve.errors import UsageError
from tests.unit.bench.builders import failed, figures, record, run_of


def called(*arguments):
    command.main(list(arguments), standalone_mode=False, prog_name="qserve bench")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "8", "--request-rate", "2"], "--concurrency and --request-rate are different loads"),
        (["--sweep", "--concurrency", "8"], "--concurrency and --sweep"),
        (["--burstiness", "0.5"], "use them with --request-rate"),
        (["--best-of", "4"], "--best-of is the number of answers"),
        (["--endpoint", "reward", "--goodput", "ttft:3"], "only e2el"),
        (["ttft:200"], "write limits after --goodput"),
        (["--goodput", "ttft:200", "tpot"], "write a limit"),
        (["--output", "/proc/none/x.json"], "can't be written"),
        (["--goodput", "ttft:inf"], "write a limit"),
        (["--request-rate", "1e7"], "300,000,000 requests, and at most 1,000,000"),
        (["--num-prompts", "2000000"], "a stage has 2,000,000 requests"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, arguments, said):
    with pytest.raises(UsageError, match=said):
        called("--state-dir", str(tmp_path), *arguments)


@pytest.mark.parametrize("url", ["localhost:8000", "http://h:99999"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(click.BadParameter, match="not the address of a server"):
        called("--url", url)


@pytest.mark.parametrize("value", ["0", "a", "1,,x", "", "-3", "1.5"])
def test_concurrency_is_a_list_of_positive_numbers(value):
    with pytest.raises(click.BadParameter, match="1,8,32"):
        called("--concurrency", value)


@pytest.mark.parametrize("flag", ["--duration", "--timeout", "--range-ratio", "--burstiness", "--temperature"])
def test_nan_is_no_number(flag):
    """Every comparison with it is false, so that it slips through bounds: arrivals were drawn until memory was gone."""
    with pytest.raises(click.BadParameter, match="not a finite number"):
        called("--request-rate", "1", flag, "nan")


@pytest.mark.parametrize("flag", ["--duration", "--timeout", "--temperature"])
def test_a_stage_without_end_is_refused(flag):
    with pytest.raises(click.BadParameter, match="not a finite number"):
        called("--request-rate", "1", flag, "inf")


PROMPT = Prompt("ask", 9, answers=("x", "y"))


def body(name, prompt=PROMPT, **fields):
    return json.loads(Endpoint(name, ENDPOINTS[name], "m", **fields).body(prompt))


def test_bodies_are_what_the_routes_take():
    chat = body("chat", ignore_eos=True)
    assert chat["messages"] == [{"role": "user", "content": "ask"}]
    assert (chat["max_tokens"], chat["stream"], chat["ignore_eos"], chat["temperature"]) == (9, True, True, 0.0)
    assert chat["stream_options"] == {"include_usage": True}
    assert body("completions")["prompt"] == "ask"
    assert "stream_options" not in body("completions", streams=False)
    assert "ignore_eos" not in body("completions")
    assert body("reward") == {"model": "m", "prompt": "ask", "responses": ["x", "y"]}
    assert body("classify") == {"model": "m", "input": ["ask x", "ask y"]}


def test_a_conversation_of_a_file_is_sent_whole():
    turns = ({"role": "system", "content": "s"}, {"role": "user", "content": "u"})
    assert body("chat", dataclasses.replace(PROMPT, messages=turns))["messages"] == list(turns)


def test_extra_fields_win():
    assert body("chat", extra={"temperature": 1, "top_p": 0.5})["temperature"] == 1


def result():
    run = run_of([record(), failed(index=1)], Stage(concurrency=2))
    server = {"url": "http://h", "model": "m", "engine": "", "run": ""}
    return BenchResult(0.0, server, {"seed": 0}, [run], [figures_of(run, {})], None, {"cpu_s": 0.1}, [])


def test_a_result_has_vllms_names_and_every_raw_time(tmp_path):
    result().save(tmp_path / "r.json")
    (stage,) = json.loads((tmp_path / "r.json").read_text())["stages"]
    assert stage["median_ttft_ms"] == pytest.approx(100)
    assert stage["p99_tpot_ms"] == pytest.approx(100)
    assert stage["output_throughput"] == 3.0
    assert stage["request_goodput"] is None
    good, bad = stage["requests"]
    assert good["chunk_ms"] == [100.0, 200.0, 300.0]
    assert bad["error"] == {"kind": "HTTP 500", "sentence": "HTTP 500: a sentence"}
    assert "requests" not in result().to_json(with_requests=False)["stages"][0]


def test_what_was_not_measured_is_null_and_not_zero():
    run = run_of([record(chunk_s=(), output_tokens=4)])
    stage = BenchResult(0.0, {}, {}, [run], [figures_of(run, {})], None, {}, []).to_json()["stages"][0]
    assert stage["median_ttft_ms"] is None
    assert stage["median_e2el_ms"] == pytest.approx(500)


def test_a_clock_of_arrivals_is_json_too():
    """Infinity is in no JSON, though Python writes and reads it."""
    stage = Stage(request_rate=2.0, burstiness=float("inf"))
    runs = [run_of([record()], stage)]
    told = BenchResult(0.0, {}, {"burstiness": float("inf")}, runs, [figures_of(runs[0], {})], None, {}, [])
    document = json.loads(json.dumps(told.to_json(), allow_nan=False))
    assert document["load"]["burstiness"] == document["stages"][0]["burstiness"] == "inf"


@pytest.mark.parametrize("num_stages", [1, 2])
def test_what_was_cut_off_is_told(num_stages):
    runs = [run_of([record()], Stage(concurrency=2)) for _ in range(num_stages)]
    runs[-1].num_cut_off = 3
    stopped = BenchResult(0.0, {}, {}, runs, [figures_of(one, {}) for one in runs], None, {}, [])
    console = Console(record=True, file=io.StringIO(), width=160)
    show_result(console, stopped)
    assert "Stopped at 2 at once: 3 requests were cut off and are not counted." in console.export_text()


def test_csv_has_a_line_for_each_request(tmp_path):
    result().save_csv(tmp_path / "r.csv")
    with (tmp_path / "r.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["stage"], first["ttft_ms"], first["e2el_ms"], first["error"]) == ("2 at once", "100.0", "300.0", "")
    assert (second["ttft_ms"], second["error"]) == ("", "HTTP 500")


def test_a_file_that_can_not_be_written_is_known_before_the_load(tmp_path):
    check_file_writable(tmp_path / "new" / "r.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"):
        check_file_writable(tmp_path / "file" / "r.json")


@pytest.mark.parametrize(
    ("true_ms", "seen_ms", "is_good"),
    [(20, 20.3, True), (20, 20.5, False), (20, 19.5, False), (1000, 1001.9, True), (1000, 1002.1, False)],
)
def test_the_self_test_wants_2_ms_and_2_percent(true_ms, seen_ms, is_good):
    assert Check(Stage(concurrency=1), "TTFT", true_ms, seen_ms).is_good == is_good


@pytest.mark.parametrize(("tpot_s", "is_said"), [(0.0, True), (0.00001, True), (0.001, False)])
def test_tokens_that_arrive_together_are_no_speed(tpot_s, is_said):
    console = Console(file=io.StringIO(), width=200)
    show_result(console, BenchResult(0.0, {}, {}, [], [figures(8, 0.5, tpot_s, 100.0)], None, {}, []))
    assert ("answers arrived together" in console.file.getvalue()) == is_said
