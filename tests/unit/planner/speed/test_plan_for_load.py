"""Layouts that are chosen by a load, targets, ways out and prices: what `qserve plan` says, read as JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.planner.make import make_plan
from qserve.planner.plan import Plan
from qserve.planner.request import PlanRequest
from qserve.planner.speed.calibration import Measured
from qserve.planner.speed.load import Load
from qserve.service.layout.for_load import plan_for_load
from qserve.service.load import SpeedRequest
from qserve.service.machine import hardware_of

FIGURES = ("ttft_ms", "tpot_ms", "e2e_ms")
RATES = ("output_tokens_per_s", "requests_per_s")


def plan(*arguments: str, exit_code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["--no-learn", "--json", *arguments])
    assert result.exit_code == exit_code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def qwen(*arguments: str) -> dict[str, Any]:
    return qwen_of("Qwen/Qwen3-32B", *arguments)


def qwen_of(model: str, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = plan("--model", model, *arguments)["speed"]
    return found


def test_without_a_load_it_says_one_stream_of_1000_and_300() -> None:
    speed = qwen("--gpu", "h100-sxm")
    load = speed["load"]
    assert (load["input"], load["output"], load["concurrency"], load["assumed"]) == (1000, 300, 1, True)
    assert speed["max_rps"] is None
    assert speed["alternatives"] == []


def test_without_a_load_free_cards_are_counted_by_time_per_token_and_rate() -> None:
    found = plan("--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:8")
    chosen, quickest, *others = found["speed"]["alternatives"]
    ranks = found["placement"]["tensor_parallel_size"]
    assert chosen["chosen"]
    assert (chosen["tensor_parallel_size"], chosen["replicas"]) == (ranks, 1)
    assert (quickest["tensor_parallel_size"], quickest["replicas"]) == (8, 1)
    assert all(quickest["tpot_ms"] < one["tpot_ms"] for one in (chosen, *others))
    assert all(one["cards"] == 8 for one in (quickest, *others))
    # On one card the context would be cut.
    assert all(one["tensor_parallel_size"] > 1 for one in others)
    said = " ".join(found["speed"]["notes"])
    assert "--tensor-parallel-size 8)" in said
    widest = max(others, key=lambda one: one["max_rps"])
    assert widest["max_rps"] > 2 * chosen["max_rps"]
    assert f"--tensor-parallel-size {widest['tensor_parallel_size']} --replicas {widest['replicas']})" in said


def test_ranks_that_save_no_time_stand_behind_those_that_answer_more() -> None:
    _, first, *_ = qwen_of("Qwen/Qwen3-0.6B", "--gpu", "rtx-4090:4")["alternatives"]
    assert (first["tensor_parallel_size"], first["replicas"]) == (1, 4)


@pytest.mark.parametrize("fixed", [["--tensor-parallel-size", "2"], ["--engine", "transformers"]])
def test_a_layout_that_is_given_has_no_alternatives_without_a_load(fixed: list[str]) -> None:
    assert qwen_of("Qwen/Qwen3-8B", "--gpu", "h100-sxm:2", *fixed)["alternatives"] == []


def test_the_flags_that_a_note_names_give_the_layout() -> None:
    speed = qwen("--gpu", "h100-sxm:8", "--tensor-parallel-size", "2", "--replicas", "4")
    one = speed["alternatives"][0]
    assert one["chosen"]
    assert (one["tensor_parallel_size"], one["replicas"], one["cards"]) == (2, 4, 8)


def test_a_request_that_every_server_would_refuse_is_refused() -> None:
    arguments = ["--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:8", "--users", "3", "--input", "50000"]
    said = CliRunner().invoke(command, arguments)
    assert isinstance(said.exception, UsageError)
    assert "50,300 tokens are more than the context of Qwen/Qwen3-32B: 40,960" in str(said.exception)
    stretch = str(said.exception).partition("; shorten them, or stretch them by YaRN: --context ")[2]
    again = CliRunner().invoke(command, [*arguments, "--context", stretch, "--json"])
    assert json.loads(again.output)["fits"]
    said = CliRunner().invoke(command, [*arguments[:-1], "5000", "--max-model-len", "4096"])
    assert "5,300 tokens are more than --max-model-len 4,096; shorten them, or raise it" in str(said.exception)


def test_layouts_that_are_too_short_for_a_request_are_left_out() -> None:
    rows = qwen("--gpu", "h100-sxm:2", "--input", "36000", "--users", "2")["alternatives"]
    assert ("bf16", 2) in {(row["quant"], row["tensor_parallel_size"]) for row in rows}
    assert ("bf16", 1) not in {(row["quant"], row["tensor_parallel_size"]) for row in rows}


def test_where_no_layout_takes_a_request_ways_out_are_shown_without_targets() -> None:
    speed = qwen("--gpu", "rtx-4090", "--input", "10000", "--users", "2")
    assert any("is too small for a request of 10,000 + 300 tokens" in note for note in speed["notes"])
    flags = {one["command"] for one in speed["suggestions"]}
    assert all(any(one in line for line in flags) for one in ("--gpu rtx-4090:2 ", "--input 7500 "))


def test_a_quantization_that_keeps_up_goes_before_a_better_one_that_does_not() -> None:
    found = plan("--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm", "--input", "30000", "--users", "4")
    assert found["quant"]["scheme"] == "fp8"
    assert any(note.startswith("bf16 is more accurate, but requests pile up") for note in found["notes"])


@pytest.mark.parametrize("flag", ["burst", "users", "concurrency"])
def test_more_requests_than_are_simulated_are_refused(flag: str) -> None:
    with pytest.raises(UsageError, match=rf"--{flag} 20001: at most 20,000 are simulated"):
        Load(**{flag: 20_001})


def test_a_long_burst_is_bounded_by_its_number_of_prompts() -> None:
    assert Load(burst=10**7, num_prompts=500).total_prompts == 500


def test_every_stream_asks_twice() -> None:
    assert Load(concurrency=4000).total_prompts == 8000
    assert Load(concurrency=500).total_prompts == 2500


def test_a_quantization_that_keeps_the_targets_in_the_mean_alone_is_named() -> None:
    found = plan("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "rtx-3090:2", "--concurrency", "8", "--ttft", "1.2s")
    (said,) = [note for note in found["notes"] if "is more accurate" in note]
    assert found["quant"]["scheme"] == "gptq-int4"
    assert said.startswith("fp8, 1 × TP 2")
    assert "at the slow end of the estimate; --quant fp8" in said


@pytest.mark.parametrize("load", [["--concurrency", "8"], ["--burst", "20"], ["--rps", "2"], ["--users", "10"]])
def test_every_load_gives_every_figure_inside_its_band(load: list[str]) -> None:
    speed = qwen("--gpu", "h100-sxm:2", "--input", "500", "--output", "100", *load)
    for name in FIGURES:
        figure = speed[name]
        assert set(figure) == {"mean", "p50", "p90", "p99", "low", "high"}
        assert 0 < figure["low"] < figure["mean"] < figure["high"]
        assert figure["p50"] <= figure["p90"] <= figure["p99"]
    for name in (*RATES, "max_rps"):
        assert 0 < speed[name]["low"] <= speed[name]["value"] <= speed[name]["high"]
    assert sum(row["chosen"] for row in speed["alternatives"]) == 1


def test_eight_cards_and_a_rate_take_the_fewest_that_surely_keep_the_targets() -> None:
    found = plan("--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:8", "--rps", "12", "--ttft", "1s", "--tpot", "50ms")
    speed = found["speed"]
    chosen = next(row for row in speed["alternatives"] if row["chosen"])
    assert speed["targets"]["met"]
    assert chosen["quant"] == "bf16"
    assert 2 <= chosen["cards"] < 8
    assert len(found["devices"]) == chosen["cards"]
    assert chosen["kept_share_at_band"] >= 0.9
    assert speed["max_rps"]["value"] > 12
    alike = {row["cards"] for row in speed["alternatives"] if row["quant"] == "bf16"}
    assert alike > {chosen["cards"], 8}, "what the chosen quantization does on other numbers of cards"


def test_fewer_sequences_at_once_where_more_would_miss_the_time_per_token() -> None:
    arguments = ["--gpu", "h100-sxm:2", "--quant", "fp8", "--concurrency", "128", "--ttft", "60s", "--tpot", "25ms"]
    found = plan("--model", "Qwen/Qwen3-32B", *arguments)
    seqs = found["workload"]["max_num_seqs"]
    assert found["speed"]["targets"]["met"]
    assert seqs < 128
    assert found["engine_args"][found["engine_args"].index("--max-num-seqs") + 1] == str(seqs)
    assert any(f"--max-num-seqs {seqs}" in note for note in found["notes"])
    fixed = plan("--model", "Qwen/Qwen3-32B", *arguments, "--max-num-seqs", "256")
    assert fixed["workload"]["max_num_seqs"] == 256
    assert not fixed["speed"]["targets"]["met"]


def test_without_targets_more_cards_serve_a_load_faster() -> None:
    one, eight = (qwen("--gpu", f"h100-sxm:{count}", "--concurrency", "32") for count in (1, 8))
    assert eight["tpot_ms"]["mean"] < one["tpot_ms"]["mean"] / 2


def test_the_front_is_what_no_other_beats_for_a_user_and_for_a_card_at_once() -> None:
    rows = qwen("--gpu", "h100-sxm:4", "--concurrency", "16")["alternatives"]
    axes = [(row["tokens_per_s_per_user"], row["tokens_per_s_per_card"]) for row in rows]
    for row, mine in zip(rows, axes, strict=True):
        beaten = any(other != mine and other[0] >= mine[0] and other[1] >= mine[1] for other in axes)
        assert row["pareto"] is not beaten
    assert 2 <= sum(row["pareto"] for row in rows) < len(rows)


def test_flags_fix_the_layout() -> None:
    found = plan(
        "--model",
        "Qwen/Qwen3-32B",
        "--gpu",
        "h100-sxm:8",
        "--concurrency",
        "16",
        "--tensor-parallel-size",
        "2",
        "--replicas",
        "3",
        "--quant",
        "fp8",
    )
    rows = found["speed"]["alternatives"]
    assert {(row["tensor_parallel_size"], row["replicas"], row["quant"]) for row in rows} == {(2, 3, "fp8")}
    assert "--data-parallel-size" not in found["engine_args"], "each replica is a server of its own"
    assert found["placement"]["tensor_parallel_size"] == 2


def test_targets_out_of_reach_offer_ways_out_that_keep_them() -> None:
    arguments = ["--gpu", "rtx-4090", "--users", "30", "--ttft", "2s", "--tpot", "50ms"]
    speed = qwen(*arguments)
    assert not speed["targets"]["met"]
    commands = [one["command"] for one in speed["suggestions"]]
    (more,) = (words for one in commands if "--gpu rtx-4090:" in one and (words := one.split()[2:]))
    assert plan(*more)["speed"]["targets"]["met"]


def test_a_prefix_in_the_cache_shortens_the_first_token() -> None:
    cold, warm = (qwen("--gpu", "l40s:2", "--concurrency", "4", "--prefix-share", share) for share in ("0", "0.8"))
    assert warm["ttft_ms"]["mean"] < 0.6 * cold["ttft_ms"]["mean"]


def test_a_card_with_a_price_that_nobody_knows_is_named(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[cards]\nh100-sxm = 3.0\nh100-smx = 2.0\n")
    words = ["--no-learn", "--json", "--model", "Qwen/Qwen3-0.6B", "--gpu", "any", "--users", "2"]
    said = CliRunner().invoke(command, [*words, "--prices", str(prices)])
    assert "not ranked: h100-smx (not in configs/gpus.toml)" in said.stderr
    assert [row["gpu"] for row in json.loads(said.stdout)["gpus"]] == ["h100-sxm:1"]


def test_prices_of_the_users_own_file(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[cards]\nh100-sxm = 10.0\n")
    speed = qwen("--gpu", "h100-sxm:2", "--tensor-parallel-size", "2", "--concurrency", "4", "--prices", str(prices))
    assert speed["price_per_hour"] == 20.0
    tokens_an_hour = speed["output_tokens_per_s"]["value"] * 3600 / 1e6
    whole = speed["price_per_million_output_tokens"] + speed["price_per_million_input_tokens"] * 1000 / 300
    assert whole * tokens_an_hour == pytest.approx(20.0, rel=0.03)


def test_any_card_ranks_by_price_what_carries_the_load(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text("[cards]\nh100-sxm = 3.0\nrtx-4090 = 0.3\nl40s = 0.8\n")
    arguments = ["--gpu", "any", "--users", "5", "--ttft", "3s", "--tpot", "60ms", "--prices", str(prices)]
    rows = plan("--model", "Qwen/Qwen3-8B", *arguments)["gpus"]
    able = [row["price_per_hour"] for row in rows if row["kept_share"] >= 0.9]
    assert able == sorted(able)
    assert rows[0]["kept_share"] >= 0.9
    assert {row["gpu"].split(":")[0] for row in rows} == {"h100-sxm", "rtx-4090", "l40s"}


def test_cards_that_users_wait_at_are_ranked_last_and_counted_again(tmp_path: Path) -> None:
    """Thirty users of a 32B on one RTX 3090: the first token would take three quarters of a minute."""
    prices = tmp_path / "prices.toml"
    prices.write_text("[cards]\nrtx-3090 = 0.2\nh100-sxm = 3.0\n")
    rows = plan("--model", "Qwen/Qwen3-32B", "--gpu", "any", "--users", "30", "--prices", str(prices))["gpus"]
    assert [row["keeps_up"] for row in rows] == sorted((row["keeps_up"] for row in rows), reverse=True)
    alone = next(row for row in rows if row["gpu"] == "rtx-3090:1")
    assert not alone["keeps_up"] and alone["ttft_ms"] > 10_000
    more = [row for row in rows if row["gpu"].startswith("rtx-3090") and row["keeps_up"]]
    assert more and more[0]["cards"] > 1


def test_a_plan_says_where_requests_pile_up() -> None:
    few, many = (
        plan("--model", "Qwen/Qwen3-32B", "--gpu", "rtx-4090", "--quant", "awq", "--users", users)["notes"]
        for users in ("2", "60")
    )
    assert not any("pile up" in note for note in few)
    assert any("pile up" in note and "--ttft" in note for note in many)
    rate = plan("--model", "Qwen/Qwen3-32B", "--gpu", "rtx-4090", "--quant", "awq", "--rps", "2")["notes"]
    assert any(note.startswith("Requests pile up: of 2 requests/s 0.") for note in rate)


def test_a_plan_says_which_target_is_missed_and_by_how_much() -> None:
    notes = plan("--model", "Qwen/Qwen3-32B", "--gpu", "rtx-4090", "--users", "30", "--ttft", "3s", "--tpot", "60ms")[
        "notes"
    ]
    (first,) = (note for note in notes if note.startswith("TTFT "))
    assert re.fullmatch(r"TTFT missed: [\d.]+ s for 90 % of the requests, 3.00 s asked", first)
    assert any(re.match(r"TPOT kept: [\d.]+ ms for 90 % .*, 60.0 ms asked", note) for note in notes)


def test_a_trace_is_a_load(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f'{{"arrival": {i / 2}, "input": {200 + i}, "output": 50}}\n' for i in range(20)))
    speed = qwen("--gpu", "h100-sxm", "--trace", str(trace))
    assert speed["load"]["trace"] == 20


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rps", "1", "--users", "3"], "one way"),
        (["--ttft", "fast"], "not a duration"),
        (["--think-time", "3", "--rps", "1"], "--users"),
        (["--replicas", "9", "--tensor-parallel-size", "1", "--quant", "fp8"], "--replicas 9"),
    ],
)
def test_bad_loads_are_one_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(command, ["--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:2", "--no-learn", *arguments])
    message = result.output + str(result.exception)
    assert result.exit_code != 0
    assert words in message


def test_the_same_command_says_the_same() -> None:
    first, second = (qwen("--gpu", "h100-sxm:2", "--rps", "3") for _ in range(2))
    assert first == second


def test_pipelines_are_named() -> None:
    speed = plan("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "rtx-3090:2", "--concurrency", "8")["speed"]
    for row in speed["alternatives"]:
        assert ("PP" in row["layout"]) == (row["pipeline_parallel_size"] > 1)


def test_a_plan_says_in_which_quantization_its_answers_are_the_shortest() -> None:
    notes = plan("--model", "Qwen/Qwen3-8B", "--gpu", "rtx-4090", "--users", "30")["notes"]
    told = next(note for note in notes if note.startswith("Chose bf16, 1 × TP 1: "))
    assert "the only layout in bf16" in told
    assert "fewer bits are faster (--quant)" in told


def test_servers_side_by_side_without_a_load_have_a_stream_each() -> None:
    arguments = ["--no-learn", "--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:4", "--replicas", "2"]
    found = CliRunner().invoke(command, arguments, env={"COLUMNS": "200"})
    assert "one request at a time on each of 2 servers" in found.stdout
    assert "on each of 2 servers" in found.stdout
    assert "in time" not in found.stdout


def test_an_engine_that_runs_alone_says_so_of_replicas() -> None:
    arguments = ["--model", "Qwen/Qwen3-8B", "--engine", "transformers", "--gpu", "rtx-4090:2", "--replicas", "2"]
    found = CliRunner().invoke(command, ["--no-learn", *arguments, "--users", "3"])
    assert found.exit_code != 0
    assert "one server on the engine transformers" in str(found.output) + str(found.exception)


def test_engines_of_one_server_share_the_load_as_replicas_do() -> None:
    load = ["--model", "Qwen/Qwen3-30B-A3B", "--gpu", "l40s:4", "--quant", "bf16", "--concurrency", "8"]
    spread = plan(*load, "--data-parallel-size", "2")
    apart = plan(*load, "--replicas", "2")
    assert spread["engine_args"][spread["engine_args"].index("--data-parallel-size") + 1] == "2"
    assert (spread["speed"]["replicas"], spread["speed"]["engines"]) == (1, 2)
    assert {row["replicas"] for row in spread["speed"]["alternatives"]} == {2}
    assert spread["speed"]["tpot_ms"] == apart["speed"]["tpot_ms"]
    assert len(spread["devices"]) == len(apart["devices"]) == 4
    result = CliRunner().invoke(command, ["--no-learn", *load, "--data-parallel-size", "2", "--replicas", "2"])
    assert "one or the other" in str(result.exception)


def test_a_quantization_that_needs_fewer_cards_is_named() -> None:
    """bf16 is preferred; fp8 would keep the targets on fewer cards, and 4 bit that nobody made is told to be absent."""
    found = plan("--model", "Qwen/Qwen3-32B", "--gpu", "h100-sxm:4", "--rps", "10", "--ttft", "1s", "--tpot", "50ms")
    chosen = next(row for row in found["speed"]["alternatives"] if row["chosen"])
    (note,) = [note for note in found["notes"] if "fp8 keeps the targets on" in note]
    assert chosen["quant"] == "bf16"
    assert f"of these {chosen['cards']} cards" in note
    hybrid = plan("--model", "Qwen/Qwen3.6-27B", "--gpu", "l40s", "--concurrency", "4")
    assert any("No layout in 4 bit runs here" in note for note in hybrid["notes"])


def test_the_plan_that_is_chosen_for_a_load_knows_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its suggestions have speeds."""
    known, heard = Measured(cpu=None), []

    def recorded(*given: Any, **named: Any) -> Plan:
        heard.append(named["measured"])
        return make_plan(*given, **named)

    monkeypatch.setattr("qserve.service.layout.for_load.make_plan", recorded)
    wanted = SpeedRequest(Load(concurrency=2), measured=known)
    plan_for_load(resolve("demo"), hardware_of("rtx-4090"), PlanRequest(), wanted)
    assert heard and all(one is known for one in heard)
