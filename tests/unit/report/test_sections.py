"""What single sections say of the facts."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from qserve.charts.html import draw
from qserve.charts.spec import StackedBars
from qserve.report.blocks import Row, Table, Text
from qserve.report.sections import sections_of
from qserve.report.sections.bench import bench
from qserve.report.sections.faults import faults
from qserve.report.sections.latency import latency
from qserve.report.sections.layouts import layouts
from qserve.report.sections.memory import memory, token_error, total_error
from qserve.report.sections.next_step import next_step
from qserve.report.sections.overview import endings, overview
from qserve.report.sections.reward_quality import reward_quality
from qserve.report.sections.start import start
from qserve.report.sections.traffic import traffic
from qserve.report.sections.training import training
from qserve.runs import MemorySample, RequestGroup, StoredDocument, StoredEvent
from qserve.runs.key_usage import KeyUsage
from tests.unit.report.made_up import BEGAN, a_full_report, a_report, a_run, a_worker


def _rows(section, key):
    for block in section.blocks:
        table = getattr(block, "table", block)
        if getattr(table, "key", "") == key:
            return {row[0]: row for row in table.rows}
    raise KeyError(key)


def test_processes_without_a_model_stand_planned_beside_measured():
    host = [{"name": "gateway", "num_bytes": 80}, {"name": "web UI", "num_bytes": 200}]
    report = a_report()
    hardware = {**report.run.hardware, "host": host}
    samples = (*report.memory, MemorySample(BEGAN + 9, "gateway", "serving", {"resident_bytes": 76}))
    rows = _rows(memory(replace(report, run=replace(report.run, hardware=hardware), memory=samples)), "memory_host")
    assert rows["gateway"][1:3] == (80, 76) and rows["gateway"][3] == pytest.approx(-0.05)
    assert rows["web UI"][2:] == (None, None, "not started")
    with pytest.raises(KeyError):
        _rows(memory(report), "memory_host")  # a run of an older qserve


def test_the_error_of_the_plan_is_told_for_each_term_and_for_all():
    report = a_report()
    chat = report.run.workers[0]
    rows = _rows(memory(report), "memory_chat")
    device = chat.plan["devices"][0]
    assert rows["weights"][1:4] == (device["weights_bytes"], 2 * device["weights_bytes"], 1.0)
    assert rows["weights"][4] == "sum of the tensors"
    assert rows["KV cache"][3] == 0.0
    planned = sum(device[f"{term}_bytes"] for term in ("weights", "kv_cache", "activations", "runtime"))
    assert total_error(report, chat) == pytest.approx(device["weights_bytes"] / planned)
    assert rows["all measured"][3] == total_error(report, chat)
    assert token_error(report, chat) == -0.5


def test_latency_stands_beside_what_was_planned_for_the_same_requests():
    report = a_report()
    rows = _rows(latency(report), "latency_planned_chat")
    assert rows["time to first token"][1:] == (20.0, 15.0, 28.0, 19.0, 25.0, 23.5, 0.25)
    tiles = {tile.label: tile.value for tile in overview(report).blocks[0].tiles}
    assert tiles["chat time per output token"] == -0.05
    assert latency(replace(report, latency={})) is None


@pytest.mark.parametrize(("share", "is_told"), [(None, False), (0.04, False), (0.634, True)])
def test_latency_on_a_machine_that_was_loaded_says_so(share, is_told):
    report = a_report()
    told = {**report.latency["chat"], **({} if share is None else {"others_share": share})}
    (table, _) = latency(replace(report, latency={"chat": told})).blocks
    said = "Other programs took 63 % of this machine's processors meanwhile; the plan assumes none"
    assert (said in table.how) is is_told


def test_layouts_of_the_load_stand_in_the_report_of_a_run_that_was_planned_for_one():
    row = {
        "layout": "bf16, 1 × TP 2",
        "cards": 2,
        "max_num_seqs": 64,
        "ttft_ms": 90.0,
        "tpot_ms": 12.0,
        "output_tokens_per_s": 800.0,
        "kept_share": 1.0,
        "price_per_hour": None,
        "chosen": True,
        "pareto": True,
        "tokens_per_s_per_user": 83.3,
        "tokens_per_s_per_card": 400.0,
    }
    report = a_report()
    assert layouts(report) is None
    chat = report.run.workers[0]
    speed = {"load": {"input": 1000, "rps": 2, "assumed": False}, "alternatives": [row], "notes": []}
    planned = replace(chat, plan={**chat.plan, "speed": speed})
    section = layouts(replace(report, run=replace(report.run, workers=(planned,))))
    assert _rows(section, "layouts_chat")["bf16, 1 × TP 2"][-2:] == (None, "yes")


def test_the_last_account_of_the_memory_counts():
    report = a_report()
    chat = report.run.workers[0]
    assert report.measured(chat).moment == "end"
    running = replace(report, memory=report.memory[:-2])
    assert running.measured(chat).moment == "serving"
    assert running.sources(chat)["weights_bytes"] == "sum of the tensors"


def test_a_term_that_nobody_measured_is_not_told_as_zero():
    report = a_report()
    samples = tuple(replace(one, terms={"weights_bytes": 5.0}) for one in report.memory)
    rows = _rows(memory(replace(report, memory=samples)), "memory_chat")
    assert rows["KV cache"][2:4] == (None, None)
    assert "all measured" not in rows
    bars = memory(replace(report, memory=samples)).blocks[0].chart.bars
    assert bars[-1].remark == "5 B, the rest not measured"
    tiles = {tile.label: tile for tile in overview(replace(report, memory=samples)).blocks[0].tiles}
    assert tiles["chat memory"].remark == "5 B measured, 3.8 MiB planned: weights only"


def test_each_card_has_a_bar_of_its_own():
    worker = a_worker()
    device = worker.plan["devices"][0]
    plan = {**worker.plan, "devices": [{**device, "name": "Card"}, {**device, "name": "Card", "weights_bytes": 0}]}
    report = a_report(run=a_run(replace(worker, plan=plan)), memory=())
    bars = next(
        block.chart for block in memory(report).blocks if isinstance(getattr(block, "chart", None), StackedBars)
    )
    assert [bar.label for bar in bars.bars] == ["planned, Card (0)", "planned, Card (1)"]


def test_a_single_card_is_drawn_to_its_own_size():
    worker = a_worker()
    hardware = {"devices": [{"name": worker.plan["devices"][0]["name"]}]}
    report = a_report(run=a_run(worker, hardware=hardware))
    bars = memory(report).blocks[0].chart
    assert bars.maximum == worker.plan["devices"][0]["total_bytes"]


def test_only_faults_are_among_the_faults():
    rows = _rows(faults(a_report()), "events")
    assert [row[2] for row in rows.values()] == ["restart"]
    assert _rows(faults(a_report()), "errors")["chat"][1:] == ("queue_full", 1)
    quiet = a_report(events=(StoredEvent(BEGAN, "chat", "ready", {}),), traffic=type(a_report().traffic)((), ()))
    assert faults(quiet) is None


def test_what_failed_for_good_is_a_fault_and_its_log_the_next_step():
    of_worker = StoredEvent(BEGAN, "chat-1", "failed", {"reason": "it died 5 times in 10 min"})
    of_service = StoredEvent(BEGAN + 1, "", "failed", {"reason": "no replica of demo is left"})
    report = a_report(events=(of_worker, of_service))
    assert [row[1:3] for row in _rows(faults(report), "events").values()] == [("chat-1", "failed"), ("", "failed")]
    (code,) = next_step(report).blocks
    assert code.lines[-1].endswith("/chat-1.log")


def test_a_signal_has_its_name():
    events = (
        StoredEvent(BEGAN, "chat", "down", {"returncode": -9}),
        StoredEvent(BEGAN, "chat", "down", {"returncode": 3}),
    )
    block = next(block for block in faults(a_report(events=events)).blocks if getattr(block, "key", "") == "events")
    assert [row[3] for row in block.rows] == ["killed by SIGKILL", "exit status 3"]


def test_a_load_of_rewards_is_told_in_texts_and_its_failures_by_kind():
    stage = {
        "name": "4 at once",
        "completed": 20,
        "failed": 3,
        "request_throughput": 5.0,
        "output_throughput": 0.0,
        "text_throughput": 40.0,
        "total_token_throughput": 9000.0,
        "errors": {"HTTP 503": 2, "timed out": 1},
        "error_sentences": {"HTTP 503": "it restarts", "timed out": "too slow"},
        "median_e2el_ms": 20.0,
        "p99_e2el_ms": 50.0,
    }
    document = {"load": {"endpoint": "reward"}, "stages": [stage, {**stage, "name": "8 at once"}]}
    throughput, latency, *texts = bench(
        a_report(benches=(StoredDocument(1, "bench", BEGAN, "x", "", document),))
    ).blocks
    columns = [one.key for one in throughput.table.columns]
    assert columns[4:6] == ["texts_per_s", "tokens_per_s"] and "output_tokens_per_s" not in columns
    assert [bar.segments[0].value for bar in throughput.chart.bars] == [40.0, 40.0]
    assert [[segment.value for segment in bar.segments] for bar in latency.chart.bars] == [[20.0, 30.0]] * 2
    assert [text.text for text in texts] == ["4 failed, HTTP 503: it restarts", "2 failed, timed out: too slow"]
    generated = bench(a_report()).blocks[0]
    assert "output_tokens_per_s" in [one.key for one in generated.columns], "a single load has no curve, and a table"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "died", "ended_unix_s": None}, "ended without a last record"),
        ({"exit_status": 5}, "exit status 5"),
        ({"num_lost": 7}, "7 requests could not be recorded"),
    ],
)
def test_what_the_reader_must_not_miss_is_a_warning(changes, words):
    section = faults(a_report(run=a_run(**changes), events=()))
    assert section.blocks[0].is_warning
    assert words in section.blocks[0].text


def test_what_was_refused_is_no_failure_of_the_service():
    """A client's mistakes, and requests by which old releases tested a server, are told apart from failures."""
    report = a_report()
    chat, reward = report.traffic.workers
    chat = replace(chat, summary=replace(chat.summary, statuses={200: 12, 400: 2, 503: 1}))
    reward = replace(reward, summary=replace(reward.summary, statuses={200: 14, 422: 1}))

    def told(*workers, num_errors=4):
        groups = (RequestGroup("/v1/x", "m", "chat", 30, 4),)
        run = replace(report.run, num_errors=num_errors)
        return endings(replace(report, run=run, traffic=replace(report.traffic, groups=groups, workers=workers)))

    assert told(chat, reward) == "1 failed, 3 refused as invalid"
    assert told(num_errors=0) == "none failed"
    assert told() == "4 failed"
    assert told(chat, num_errors=9) == "9 ended with an error", "the records of some are gone"
    assert overview(report).blocks[0].tiles[0].remark == "2 failed"


def test_the_headline_has_the_mean_that_the_plan_is_compared_with_and_both_are_named():
    """TPOT by its median in one place and by its mean in another read as two figures of one thing."""
    report = a_report()
    tiles = {tile.label: tile for tile in overview(report).blocks[0].tiles}
    shown = report.traffic_of(report.run.workers[0]).summary.latency_ms["tpot"]
    assert tiles["time per output token"].value == shown.mean
    assert tiles["time per output token"].remark == "mean of chat; p99 40.0 ms"
    titles = [
        block.title
        for section in (latency(report), traffic(report))
        for block in section.blocks
        if isinstance(block, Table)
    ]
    assert "chat: latency, planned and measured" in titles and "chat: latency of all requests" in titles
    assert "last 14 streamed answers" in latency(report).blocks[0].how


def test_a_training_curve_is_smoothed_and_its_accuracy_ends_at_a_hundred_percent():
    row = next(block for block in training(a_full_report()).blocks if isinstance(block, Row))
    loss, accuracy = (figure.chart for figure in row.figures)
    assert [line.name for line in loss.lines] == ["each step", "smoothed"]
    each, smoothed = (line.values for line in loss.lines)
    assert loss.lines[0].is_faint and len(each) == len(smoothed) == 60
    jumps = [max(abs(after - before) for before, after in pairwise(values[10:])) for values in (each, smoothed)]
    assert jumps[1] < jumps[0] / 4
    assert smoothed[0] == each[0] and smoothed[-1] == pytest.approx(0.52, abs=0.04)
    assert accuracy.kind == "share" and accuracy.at[:2] == (1.0, 2.0)
    drawn = str(draw(accuracy))
    assert re.findall(r">(\d+) %<", drawn)[-1] == "100"
    assert "step 20" in drawn


@pytest.mark.parametrize(
    ("changes", "command"),
    [
        ({}, "less /state/runs/x/chat.log"),
        ({"trainings": a_full_report().trainings}, "qserve up --reward /state/training/reward-1"),
        ({"events": (), "benches": (), "run": {"state": "running"}}, "qserve bench --url http://127.0.0.1:8000"),
        (
            {"events": (), "evals": (), "run": {"state": "running"}},
            "qserve eval --url http://127.0.0.1:8000 --suite quick",
        ),
        ({"events": (), "run": {"state": "died"}}, "less /state/runs/x/reward.log"),
        ({"events": ()}, "qserve report 20261121-224000-7 --format html --output report.html"),
    ],
)
def test_the_report_ends_with_the_next_step(changes, command):
    report = a_report()
    run = replace(report.run, **changes.get("run", {}))
    last = sections_of(replace(report, **{**changes, "run": run}))[-1]
    assert last.key == "next" and last.blocks[-1].lines == (command,)


def test_operations_are_written_without_an_exponent():
    tiles = {tile.label: tile.remark for tile in training(a_full_report()).blocks[0].tiles}
    assert tiles["MFU"] == "2 TFLOP/s of the model alone; a large product ran at 5 TFLOP/s before the run"


def test_a_model_that_learned_nothing_is_not_offered_to_be_served():
    report = a_full_report()
    (trained,) = report.trainings
    odd = {**trained.document, "check": {"error": "no head"}}
    (block,) = next_step(replace(report, events=(), trainings=(replace(trained, document=odd),))).blocks
    assert block.lines == ("qserve report 20261121-224000-7 --format html --output report.html",)


def test_a_training_that_was_stopped_is_continued_by_its_own_command():
    report = a_full_report()
    (trained,) = report.trainings
    stopped = replace(trained, document={**trained.document, "state": "stopped"})
    run = replace(report.run, command=("qserve", "train", "reward", "--data", "my pairs.jsonl"))
    (block,) = next_step(replace(report, run=run, trainings=(stopped,))).blocks
    assert block.lines == ("qserve train reward --data 'my pairs.jsonl' --output /state/training/reward-1 --resume",)


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("--output=o",), "--output=o --resume"),
        (("--resume", "--output", "o"), "--output o --resume"),
        (("--hf-token", "***", "--seed", "3"), "--seed 3 --output /state/training/reward-1 --resume"),
        (("--packing", "--hf-token=***", "--seed=3"), "--packing --seed=3 --output /state/training/reward-1 --resume"),
    ],
)
def test_a_training_is_continued_in_its_folder_and_without_a_masked_secret(typed, told):
    report = a_full_report()
    (trained,) = report.trainings
    stopped = replace(trained, document={**trained.document, "state": "stopped"})
    run = replace(report.run, command=("qserve", "train", "reward", *typed))
    (block,) = next_step(replace(report, run=run, trainings=(stopped,))).blocks
    assert block.lines == (f"qserve train reward {told}",)


def test_streams_have_first_tokens_and_whole_answers_have_none():
    rows = {key: _rows(traffic(a_report()), f"latency_{key}") for key in ("chat", "reward")}
    assert "time to first token" in rows["chat"] and "time to first token" not in rows["reward"]


def test_records_that_are_gone_are_told_and_not_taken_for_a_quiet_day():
    trimmed = traffic(a_report(run=a_run(a_worker(), num_requests=1030)))
    assert "1,000 of 1,030 requests were deleted" in trimmed.blocks[0].text
    empty = a_report(run=a_run(a_worker(), num_requests=7), traffic=type(a_report().traffic)((), ()))
    assert "7 of 7 requests" in traffic(empty).blocks[0].text
    assert traffic(a_report()).blocks[0].key == "routes"


def test_the_headline_has_what_one_looks_for_first():
    tiles = {tile.label: tile for tile in overview(a_report()).blocks[0].tiles}
    assert tiles["requests"].value == 30
    assert tiles["time to first token"].value == 21.0, "the mean, as the plan's is"
    assert tiles["chat KV tokens"].value == -0.5


def test_what_was_found_of_the_rewards_stands_in_the_report():
    checked = {
        "num_texts": 208,
        "largest_difference": 0.26,
        "mean_difference": 0.04,
        "rank_correlation": None,
        "num_flipped": 1,
        "num_pairs": 104,
    }
    right = {
        "name": "sums",
        "num_right": 96,
        "num_asked": 100,
        "accuracy": 0.96,
        "low": 0.9,
        "high": 0.98,
        "mean_margin": 3.5,
    }
    part = {
        "name": "form",
        "kind": "rule",
        "weight": 0.5,
        "num_texts": 6,
        "num_without": 2,
        "mean": None,
        "num_right": 3,
        "num_preferences": 4,
        "faults": ["no reference"],
    }
    documents = (
        {"kind": "reward check", "file": "the built-in set", "quantizations": {"int8": checked}},
        {
            "kind": "reward preferences",
            "file": "pairs.jsonl",
            "subsets": [right],
            "overall": {**right, "name": "all"},
            "attributes": [{**right, "name": "helpful", "accuracy": 0.75}],
        },
        {"kind": "reward check", "file": "pairs.jsonl", "quantizations": {}, "parts": [part]},
    )
    evals = tuple(StoredDocument(n, "eval", BEGAN, None, "", document) for n, document in enumerate(documents))
    section = reward_quality(a_report(evals=evals))
    assert _rows(section, "reward_check_0")["int8"] == ("int8", 208, 0.26, 0.04, None, 1, 104)
    assert _rows(section, "reward_preferences_1")["sums"] == ("sums", 96, 100, 0.96, 0.9, 0.98, 3.5)
    assert set(_rows(section, "reward_preferences_1")) == {"sums", "all"}
    assert _rows(section, "reward_attributes_1")["helpful"][3] == 0.75
    assert _rows(section, "reward_parts_2")["form"] == ("form", "rule", 0.5, 6, 2, None, 3, 4, "no reference")
    assert reward_quality(a_report()) is None


def test_activations_are_the_highest_mark_of_all_samples():
    report = a_report()
    chat = report.run.workers[0]
    first, *rest = report.memory
    higher = replace(first, worker="chat", terms={**first.terms, "activations_bytes": 1e12})
    assert replace(report, memory=(higher, *rest)).held(chat)["activations_bytes"] == 1e12


def test_a_document_of_another_shape_costs_its_own_section_only():
    report = a_report()
    assert not any(getattr(block, "is_warning", False) for one in sections_of(report) for block in one.blocks)
    odd = replace(report.evals[0], document={"lm_eval": {"results": {"t": 7}}})
    sections = {one.key: one for one in sections_of(replace(report, evals=(odd,)))}
    assert sections["evals"].blocks[0].is_warning and "can't read" in sections["evals"].blocks[0].text
    assert len(sections) == 12


def test_a_model_that_serves_noise_is_a_fault_and_one_that_predicts_text_is_told_of_its_start() -> None:
    def told(is_noise: bool) -> list[str]:
        details = {"is_noise": is_noise, "told": "it serves noise" if is_noise else "it predicts text"}
        report = a_report(events=(StoredEvent(BEGAN, "chat", "sanity", details),))
        sections = [start(report), faults(report)]
        return [block.text for one in sections if one for block in one.blocks if isinstance(block, Text)]

    assert "chat: it predicts text." in told(False) and not any("noise" in text for text in told(False))
    assert "chat: it serves noise" in told(True)


def test_a_route_has_one_row_though_several_workers_answered_it():
    report = a_report()
    groups = (RequestGroup("/v1/x", "m", "chat-0", 4, 1), RequestGroup("/v1/x", "m", "chat-1", 2, 0))
    section = traffic(replace(report, traffic=replace(report.traffic, groups=groups)))
    assert _rows(section, "routes") == {"/v1/x": ("/v1/x", "m", 6, 1)}


def test_what_keys_with_names_used_is_a_table_where_there_are_any():
    used = (KeyUsage("2026-11-30", "alice", "demo", 5, 1, 100, 40), KeyUsage("2026-11-30", "bob", "", 2, 2, 0, 0))
    section = traffic(a_report(keys=used))
    assert _rows(section, "keys")["2026-11-30"] == ("2026-11-30", "bob", None, 2, 2, 0, 0), "the last of the day"
    assert [block.key for block in section.blocks[:2]] == ["routes", "keys"]
    with pytest.raises(KeyError):
        _rows(traffic(a_report()), "keys")
