"""From the store's file to the command line: facts of requests against plain arithmetic, formats, files, mistakes."""

from __future__ import annotations

import json
import random
import re
import statistics

import pytest
from click.testing import CliRunner

from qserve.charts.figures import text_of
from qserve.cli.report.command import command
from qserve.cli.report.show import to_summary, to_terminal
from qserve.errors import UsageError
from qserve.report import read_report
from qserve.report.blocks import Row, Table
from qserve.report.sections import sections_of
from qserve.runs import RunStore, StoredDocument
from tests.unit.report.made_up import BEGAN, WORK, a_full_report, a_report, comparison, scores

LABELS = [
    ("POST", "/v1/chat/completions", "demo", "chat", 200, "", 0, 0),
    ("POST", "/v1/chat/completions", "demo", "chat", 503, "queue_full", 0, 0),
    ("POST", "/v1/reward", "rm", "reward", 200, "", 0, 0),
    ("GET", "/v1/nope", "", "", 404, "route_not_found", 0, 0),
]


def _requests(num):
    draw = random.Random(3)
    for number in range(num):
        label = draw.choice((1, 1, 1, 2, 3, 4))
        ttft = draw.randint(1000, 90_000) if label == 1 else None
        tokens = draw.randint(2, 50) if label == 1 else None
        e2e = (ttft or 0) + draw.randint(1000, 500_000)
        yield (
            1,
            number,
            label,
            int(1000 * BEGAN) + 400 * number,
            e2e,
            10 if label == 1 else None,
            ttft,
            7,
            tokens,
            tokens or 0,
            f"req-{number}",
        )


@pytest.fixture
def store(tmp_path):
    store = RunStore.open(tmp_path / "qserve")
    with store.connection() as connection:
        connection.execute(
            "INSERT INTO run (number, id, started_unix_s, last_seen_unix_s, ended_unix_s, exit_status, host, pid, "
            "process_start, command, versions, hardware, folder, num_requests, num_errors) VALUES "
            "(1, '20261121-1', ?, ?, ?, 0, 'h', 1, 's', '[\"qserve\", \"up\"]', '{}', '{}', '/x', 1000, 5)",
            [BEGAN, BEGAN + 400, BEGAN + 400],
        )
        connection.executemany(
            "INSERT INTO request_label VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(number, *label) for number, label in enumerate(LABELS, 1)],
        )
        connection.executemany("INSERT INTO request VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)", _requests(1000))
        connection.executemany(
            "INSERT INTO event VALUES (1, ?, 'reward', 'work', ?)",
            [(BEGAN + texts, json.dumps({**WORK, "texts": texts})) for texts in (7, 9)],
        )
    store.add_eval(scores(), name="offline", run="20261121-1")
    store.add_eval(scores(), name="of another run", run="20261120-1")
    store.add_comparison(comparison(), name="bf16, int8")
    return store


def test_the_sweep_tells_what_plain_arithmetic_tells(store):
    report = read_report(store, store.run())
    rows = list(_requests(1000))
    chat = next(one for one in report.traffic.workers if one.worker == "chat")
    answered = [row for row in rows if row[2] == 1]
    e2e = sorted(row[4] / 1000 for row in answered)
    tpot = sorted((row[4] - row[6]) / (row[8] - 1) / 1000 for row in answered)
    told = chat.summary.latency_ms
    assert told["e2e"].count == len(e2e)
    assert told["e2e"].p50 == pytest.approx(statistics.median(e2e), abs=1e-3)
    assert told["e2e"].p90 == pytest.approx(statistics.quantiles(e2e, n=10, method="inclusive")[-1], abs=1e-3)
    assert told["tpot"].mean == pytest.approx(statistics.fmean(tpot), abs=1e-3)
    assert (told["e2e"].min, told["e2e"].max) == (e2e[0], e2e[-1])
    assert chat.summary.errors == {"queue_full": sum(row[2] == 2 for row in rows)}
    assert chat.summary.completion_tokens == sum(row[8] for row in answered)
    assert sum(point.num_requests for point in chat.series) == chat.summary.num_requests
    assert sum(one.num_requests for one in report.traffic.groups) == len(rows)


def test_series_and_histograms_cover_what_was_asked(store):
    chat = next(one for one in read_report(store, store.run()).traffic.workers if one.worker == "chat")
    assert len(chat.series) <= 121
    assert chat.bucket_s * len(chat.series) >= 390
    for name, one in chat.histograms.items():
        latency = chat.summary.latency_ms[name]
        assert sum(one.counts) + one.num_beyond == latency.count
        assert one.bin_ms * len(one.counts) == pytest.approx(latency.p99, rel=1e-3)


def test_results_are_those_of_the_run_and_comparisons_those_of_its_model(store):
    report = read_report(store, store.run())
    assert [one.name for one in report.evals] == ["offline"]
    assert report.comparisons == (), "no worker of this run serves that model"


def test_what_a_worker_told_last_of_its_work_counts_and_what_it_tells_now_counts_more(store):
    report = read_report(store, store.run())
    assert report.work["reward"]["texts"] == 9
    assert not [event for event in report.events if event.event == "work"]
    assert read_report(store, store.run(), {"reward": {"work": {"texts": 11}}}).work["reward"]["texts"] == 11


def _qserve(tmp_path, *arguments):
    return CliRunner().invoke(command, [*arguments, "--state-dir", str(tmp_path)])


@pytest.mark.parametrize(("form", "begins"), [("html", "<!doctype html>"), ("md", "# "), ("json", "{")])
def test_each_format_goes_to_standard_output(store, tmp_path, form, begins):
    done = _qserve(tmp_path, "2026", "--format", form)
    assert done.exit_code == 0, done.output
    assert done.stdout.lstrip().startswith(begins)
    assert "20261121-1" in done.stdout


def test_a_file_is_what_its_name_says(store, tmp_path):
    for name, begins in (("r.html", "<!doctype"), ("r.md", "# "), ("r.json", "{")):
        assert _qserve(tmp_path, "--output", str(tmp_path / name)).exit_code == 0
        assert (tmp_path / name).read_text().lstrip().startswith(begins)
    assert json.loads((tmp_path / "r.json").read_text())["run"]["id"] == "20261121-1"


def test_without_a_format_the_terminal_gets_a_summary_and_all_tables_if_asked(store, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    summary, full = _qserve(tmp_path).stdout, _qserve(tmp_path, "--full").stdout
    assert "offline" in summary and "time to first token" not in summary
    assert "time to first token" in full and "offline" in full
    assert _qserve(tmp_path, "--format", "text").stdout == summary
    for shown in (summary, full):
        assert "\x1b[" not in shown, "a pipe gets no colours"
        assert not any(line.endswith(" ") for line in shown.splitlines()), "no row is filled up to a width of nobody's"


@pytest.mark.parametrize("options", [(), ("--full",)])
def test_a_file_gets_no_colours_from_a_terminal(store, tmp_path, monkeypatch, capsys, options):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # one that has colours
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = tmp_path / "report.txt"
    common = [*options, "--state-dir", str(tmp_path)]
    command.main([*common, "--output", str(file)], standalone_mode=False)
    assert "20261121-1" in file.read_text() and "\x1b" not in file.read_text()
    command.main(common, standalone_mode=False)
    assert "\x1b[" in capsys.readouterr().out


def test_the_terminal_gets_no_titles_of_charts():
    stages = [{"name": name, "p99_e2el_ms": 2.0, "median_e2el_ms": 1.0, "text_throughput": 3.0} for name in "ab"]
    document = StoredDocument(1, "bench", BEGAN, "x", "a, b", {"load": {"endpoint": "reward"}, "stages": stages})
    shown = to_terminal(a_report(benches=(document,)))
    assert "reward: a, b" in shown and "end to end" not in shown.partition("Load tests")[2].partition("Faults")[0]


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_cell_is_cut_and_no_word_is_broken_on_a_terminal(monkeypatch, columns):
    """A table that is too wide is turned, or in parts."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one is 80 wide to rich, whatever COLUMNS says
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    report = a_full_report(evals=(*a_full_report().evals, _with_long_names()))
    words = {word for section in sections_of(report) for word in _words(section)}
    for shown in (to_terminal(report), to_summary(report)):
        lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
        assert not [line for line in lines if "…" in line and "What is 12+30?" not in line and "42 42" not in line]
        commands = ("qserve ", "less ", "  ", "dataset_name")
        assert not [line for line in lines if len(line) > int(columns) and not line.startswith(commands)]
    seen = set(re.sub(r"\x1b\[[\d;]*m", "", to_terminal(report)).split())
    assert not {word for word in words - seen if len(word) <= int(columns) - 20}


def _with_long_names():
    result = {"results": {"a_task_with_quite_a_long_name": {"another_metric_with_a_long_name,none": 0.5}}}
    return StoredDocument(9, "eval", BEGAN + 9, "x", "long", {"lm_eval": result})


def _words(section):
    """Of the tables that a terminal gets."""
    blocks = [one for block in section.blocks for one in (block.figures if isinstance(block, Row) else (block,))]
    for table in (getattr(block, "table", block) for block in blocks):
        if isinstance(table, Table) and not table.is_long:
            for row in table.rows:
                for value, column in zip(row, table.columns, strict=True):
                    yield from text_of(value, column.kind).split()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("1999",), "no run's id begins with '1999'"),
        (("--output", "x.pdf"), "give its format with --format"),
        (("--output", "/nowhere/at/all.html"), "can't be written"),
        (("--url", "http://127.0.0.1:1", "--format", "html"), "/report"),
    ],
)
def test_a_mistake_is_one_sentence(store, tmp_path, arguments, words):
    done = _qserve(tmp_path, *arguments)
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


def test_an_empty_store_says_how_to_begin(tmp_path):
    done = _qserve(tmp_path)
    assert "start one with `qserve up`" in str(done.exception)
    assert not list(tmp_path.iterdir()), "who only looks makes no store"
    RunStore.open(tmp_path / "qserve")  # as a first start leaves it that failed before it was written down
    assert "start one with `qserve up`" in str(_qserve(tmp_path).exception)
