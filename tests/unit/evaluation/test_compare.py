"""Advice and picture of a comparison."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from qserve.charts.svg import svg_file
from qserve.cli.compare.show import show_candidates
from qserve.cli.compare.steps import Comparing
from qserve.cli.main import cli
from qserve.cli.progress import progress_line
from qserve.errors import UnusableResult, UsageError
from qserve.evaluation.comparison.compare import (
    Candidate,
    advice,
    answers_folder,
    recommended,
    summary_of,
    unscorable_in,
    verdict,
)
from qserve.evaluation.comparison.diff import Drift, TaskDiff
from qserve.evaluation.comparison.load import LoadFigures
from qserve.evaluation.comparison.questions import RewardQuestions
from qserve.evaluation.results import EvalResult
from qserve.report.sections.comparison import tradeoffs
from qserve.ui.strings.sentences import shown

NOTHING = EvalResult({}, {"results": {}, "samples": {}})


def candidate(quant: str, weights_bytes: int, tokens_per_s: float = 10.0, *diffs: TaskDiff) -> Candidate:
    load = LoadFigures(8, 32, tokens_per_s, 1.0, 1.0, 1.0)
    return Candidate(quant, {}, {"weights_bytes": weights_bytes}, 0, 1.0, load, NOTHING, diffs)


def task(before: float, after: float, p_value: float) -> TaskDiff:
    return TaskDiff("t", "acc", 100, before, after, (), p_value, None, num_changed=4)


def test_the_smallest_that_is_not_measurably_worse() -> None:
    said = advice(
        [
            candidate("bf16", 1000),
            candidate("int8", 600, 5.0, task(0.9, 0.88, 0.5)),
            candidate("4bit", 400, 8.0, task(0.9, 0.7, 0.001)),
        ]
    )
    assert said == "Use int8: 40 % smaller, 2.0 × slower, 4 of 100 answers changed, no measurable loss"


def test_a_loss_that_chance_can_explain_does_not_count_and_a_gain_never() -> None:
    said = advice([candidate("bf16", 1000), candidate("4bit", 400, 8.0, task(0.7, 0.9, 0.001), task(0.9, 0.88, 0.5))])
    assert said.startswith("Use 4bit: 60 % smaller, 1.2 × slower, ")


def test_a_verdict_tells_size_speed_and_answers() -> None:
    first = candidate("bf16", 1000)

    def said(weights_bytes: int, tokens_per_s: float, *diffs: TaskDiff) -> str:
        return verdict(candidate("int8", weights_bytes, tokens_per_s, *diffs), first)

    same = replace(task(0.9, 0.9, 1.0), num_changed=0)
    assert said(570, 24.0, same, same) == "int8: 43 % smaller, 2.4 × faster, same answers (0 of 200 changed)"
    assert said(1000, 10.5, same) == "int8: same size, same speed, same answers (0 of 100 changed)"
    assert said(1500, 4.0) == "int8: 50 % larger, 2.5 × slower"
    worse = task(0.9, 0.7, 0.001)
    assert said(500, 10.0, same, worse).endswith("4 of 200 answers changed, worse on t (90.0 → 70.0 %)")


def test_where_everything_is_worse_or_no_smaller_the_first_stays() -> None:
    assert "Stay with bf16" in advice([candidate("bf16", 1000), candidate("4bit", 400, 1.0, task(0.9, 0.5, 0.0))])
    assert "Stay with bf16" in advice([candidate("bf16", 1000), candidate("fp16", 1000, 1.0, task(0.9, 0.9, 1.0))])


def drifted(before: float, after: float) -> TaskDiff:
    return TaskDiff("text", "log-likelihood", 40, before, after, (), 1.0, Drift(40, 300.0, 400.0))


def test_nothing_is_recommended_where_no_answer_is_right_or_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = [candidate("bf16", 1000), candidate("4bit", 300, 10.0, drifted(-100, -400))]
    said = "No recommendation: these tasks have no right or wrong answers; compare the drift with bf16"
    assert recommended(candidates) is None and advice(candidates) == said
    assert "没有对错之分；" in shown("zh-CN", said) and "bf16" in shown("zh-CN", said)
    show_candidates(Console(soft_wrap=True, width=200), "m on texts", candidates)
    printed = capsys.readouterr().out
    assert said in printed and "4bit: 70 % smaller, same speed\n" in printed and "accuracy" not in printed
    assert "accuracy" not in repr(candidates[0])
    mixed = replace(candidates[1], diffs=(drifted(-100, -400), task(0.9, 0.9, 1.0)))
    assert advice([candidates[0], mixed]).startswith("Use 4bit")


def comparing(folder: Path) -> Comparing:
    with progress_line() as line:
        return Comparing(
            ("bf16", "int8"), ["--model", "demo", "--quant"], RewardQuestions("pairs", ()), folder, None, line
        )


def test_settings_that_were_refused_are_not_those_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(words: list[str], *_: object) -> None:
        if words[-1] == "int8" and is_refused:
            raise UsageError("--max-model-len 99999999 is too long")

    is_refused = True
    monkeypatch.setattr("qserve.cli.compare.steps.check_start", check)
    with pytest.raises(UsageError, match="too long"):
        comparing(tmp_path).check({"up": "--max-model-len 99999999"})
    is_refused = False
    comparing(tmp_path).check({"up": ""})
    comparing(tmp_path).check({"up": "--seed 1"})  # nothing was measured with the first
    answers_folder(tmp_path / "int8").mkdir()
    (answers_folder(tmp_path / "int8") / "answers.db").touch()
    with pytest.raises(UsageError, match=r"int8 contains another comparison \(.*--seed 1"):
        comparing(tmp_path).check({"up": "--seed 2"})
    comparing(tmp_path).check({"up": "--seed 1"})


def test_an_engine_that_does_not_tell_its_weights_counts_as_planned() -> None:
    load = LoadFigures(8, 32, 1.0, 1.0, 1.0, 1.0)
    untold: dict[str, Any] = {"weights_bytes": None}
    assert Candidate("bf16", {}, untold, 77, 1.0, load, NOTHING).held_bytes == 77


def test_the_picture_is_svg_and_joins_what_nothing_beats() -> None:
    points = [
        ("bf16 <&>", 4_000_000, 0.95, 0.02, 100.0),
        ("int8", 2_000_000, 0.94, 0.02, 30.0),
        ("beaten", 3_000_000, 0.90, 0.02, 40.0),
    ]
    root = ET.fromstring(svg_file(tradeoffs(points), "demo"))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert "bf16 <&>" in texts
    (front,) = root.iter(f"{space}polyline")
    assert len(front.attrib["points"].split()) == 2
    colours = {element.attrib["fill"] for element in root.iter(f"{space}circle")}
    assert len(colours) == 2


def test_no_label_of_the_picture_lies_over_another_or_outside() -> None:
    """Quantizations with the same weights and answers are one point with as many labels."""
    names = ("bf16", "fp8", "int8", "bnb-nf4")
    points = [(name, 2_000_000 + 40_000 * number, 1.0, 0.0, 30.0) for number, name in enumerate(names)]
    space = "{http://www.w3.org/2000/svg}"
    texts = {
        element.text: element for element in ET.fromstring(svg_file(tradeoffs(points), "demo")).iter(f"{space}text")
    }
    places = [(float(texts[name].attrib["x"]), float(texts[name].attrib["y"])) for name in names]
    width, height = 7 * len("100.0 % · 30 tok/s"), 30
    for number, (x, y) in enumerate(places):
        assert 76 < x < 760 - width and 58 < y < 440 - 64
        assert not any(abs(x - other) < width and abs(y - its) < height for other, its in places[number + 1 :])


def test_tokens_of_a_right_answer_count_the_thoughts_of_wrong_ones() -> None:
    load = LoadFigures(1, 1, 50.0, 1.0, 1.0, 1.0)
    outcomes = {"num_answers": 10, "truncated": 1, "empty": 0, "null": 0, "num_thoughts": 10, "mean_tokens": 200.0}
    told = {"results": {"t": {"exact_match,none": 0.5, **outcomes}}, "samples": {}}
    one = Candidate("4bit", {}, {}, 0, 1.0, load, EvalResult({}, told))
    assert (one.answer_tokens, one.tokens_per_right) == (200.0, 400.0)
    assert (one.seconds_per_right, one.usd_per_right) == (8.0, None)
    assert replace(one, usd_per_hour=0.9).usd_per_right == 0.002
    assert summary_of(one)["outcomes"]["t"]["truncated"] == 1
    assert Candidate("bf16", {}, {}, 0, 1.0, load, NOTHING).tokens_per_right is None


def left_out(quant: str, *whys: str) -> Candidate:
    told = {"num_items": 10, "whys": {str(number): why for number, why in enumerate(whys)}}
    result = EvalResult({}, {"results": {}, "samples": {}, "unscorable": {"t": told}})
    return replace(candidate(quant, 1), result=result)


def test_items_that_cant_be_scored_are_named_as_an_evaluation_names_them(capsys: pytest.CaptureFixture[str]) -> None:
    """Once where all left out the same, else with the quantization: a server may refuse an item."""
    same = [
        left_out("bf16", "gold 9 is not one of its choices 0 to 3"),
        left_out("int8", "gold 9 is not one of its choices 0 to 3"),
    ]
    (said,) = unscorable_in(same)
    assert said == "t: 1 of 10 items can't be scored (item 0: gold 9 is not one of its choices 0 to 3)"
    show_candidates(Console(soft_wrap=True, width=200), "m on t", same)
    assert f"{said}; they were left out" in capsys.readouterr().out
    assert summary_of(same[0])["unscorable"]["t"]["num_items"] == 10
    other = [candidate("bf16", 1), left_out("int8", "the server refused it")]
    assert unscorable_in(other)[0].startswith("int8: t: 1 of 10 items")
    assert unscorable_in(other, 0.05) and not unscorable_in(other, 0.1)


def test_a_comparison_of_too_many_such_items_is_kept_and_ends_with_6(tmp_path: Path) -> None:
    names = ("bf16", "int8")
    whys = [left_out(name, "it has no gold").result for name in names]
    for name, result in zip(names, whys, strict=True):
        lm_eval = {
            **result.lm_eval,
            "samples": {"t": [{"doc_id": 0, "doc_hash": "a", "metrics": ["acc"], "acc": 1.0, "filtered_resps": ["1"]}]},
        }
        written = {
            "quant": name,
            "memory": {},
            "planned_bytes": 1,
            "start_s": 1.0,
            "load": asdict(LoadFigures(8, 32, 10.0, 1.0, 1.0, 1.0)),
            "devices": [],
        }
        (tmp_path / name).mkdir()
        (tmp_path / name / "measured.json").write_text(json.dumps(written))
        EvalResult({}, lm_eval).save(tmp_path / name)
    words = [
        "compare",
        "--reward",
        "demo",
        "--quants",
        "bf16,int8",
        "--out",
        str(tmp_path),
        "--state-dir",
        str(tmp_path),
    ]
    with pytest.raises(UnusableResult, match=r"t: 1 of 10 items can't be scored \(item 0: it has no gold\)") as ended:
        cli.main(words, prog_name="qserve", standalone_mode=False)
    assert ended.value.exit_status == 6
    document = json.loads((tmp_path / "comparison.json").read_text())
    assert document["candidates"][1]["unscorable"]["t"]["num_items"] == 10
