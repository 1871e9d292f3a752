"""The page of training runs: scales, curves, planned beside measured, and nothing that a model wrote as HTML."""

from __future__ import annotations

import html
import itertools
import re
from typing import Any

import pytest

from qserve.charts.scale import scale_of
from qserve.planner.training.training_defaults import EXAMPLE
from qserve.runs.verdict import advice_on, held_out_facts, warning_of
from qserve.ui.process.app import lean_import
from qserve.ui.strings.sentences import has_english, said
from qserve.ui.views.training import (
    configuration_view,
    curve_figure,
    curves_view,
    first_run_view,
    head_view,
    held_view,
    rollouts_view,
)

MIB = 2**20


def document(**changed: Any) -> dict[str, Any]:
    """Of a run of GRPO, as training/record.py keeps it."""
    curve = [
        {"step": n, "loss": 1 / n, "reward": n / 10, "learning_rate": 1e-5, "step_s": 0.5, "num_tokens": 200 * n}
        for n in range(1, 11)
    ]
    sample = {"prompt": "2+3?", "completion": "<b>5</b>", "rewards": {"rules": 1.0, "model": 0.5}, "reward": 1.5}
    terms = {"weights (policy)": 80 * MIB, "gradients (policy)": 40 * MIB, "optimizer (policy)": 160 * MIB}
    return {
        "job": {"device": "cpu"},
        "state": "running",
        "reason": None,
        "step": 10,
        "num_steps": 40,
        "curve": curve,
        "evaluations": [],
        "held_out": {},
        "tokens_per_s": 400.0,
        "step_s": 0.5,
        "mfu": None,
        "memory_source": "VmHWM",
        "planned": {
            "terms": {**terms, "runtime": 105 * MIB},
            "phases": {"backward": 400 * MIB, "step": 300 * MIB},
            "peak_terms": {**terms, "activations": 100 * MIB, "runtime": 20 * MIB},
            "name": "RAM",
            "phase": "backward",
            "total_bytes": 500 * MIB,
        },
        "measured": {
            "weights_bytes": 80 * MIB,
            "gradients_bytes": 40 * MIB,
            "optimizer_bytes": 160 * MIB,
            "baseline_bytes": 20 * MIB,
            "backward_bytes": 410 * MIB,
            "step_bytes": 300 * MIB,
        },
        "rollouts": [{"step": 1, "samples": [sample, sample]}],
        "configuration": "model: demo\n",
        "accelerate": "cpu: true\n",
        **changed,
    }


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([0.12, 0.69], [0.0, 0.25, 0.5, 0.75]),
        ([3.0, 3.0], [3.0, 4.0, 5.0, 6.0]),
        ([0.0, 0.0], [0.0, 0.1, 0.2, 0.3]),
        ([-1.4, 1.2], [-2.0, -1.0, 0.0, 1.0, 2.0][:4]),
        ([1e-6, 1e-5], [0.0, 4e-6, 8e-6, 1.2e-5]),
    ],
)
def test_a_scale_has_round_marks_around_its_values(values: list[float], marks: list[float]) -> None:
    found = scale_of(values)
    assert len(found) == 4 and found[0] <= min(values) and max(values) <= found[-1] + 1e-12
    if values != [-1.4, 1.2]:
        assert found == pytest.approx(marks)


def test_a_curve_names_its_axes_and_its_ends() -> None:
    drawn = curve_figure("Loss", "step", [("training", {1: 0.6, 3: 0.0}, "")], str)
    assert 'aria-label="Loss: training 0.6 (step 1) → 0.0 (step 3)"' in drawn
    assert "<title>step 3 · training: 0.0</title>" in drawn and ">step 1</span>" in drawn
    (path,) = re.findall(r'class="line s1" d="([^"]+)"', drawn)
    assert path == "M0.0 0.00h0L1000.0 100.00"
    assert curve_figure("Loss", "step", [("training", {}, "")], str) == ""


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([0.1, 0.98], [0, 0.25, 0.5, 0.75, 1]),
        ([0.45, 1.0], [0.4, 0.6, 0.8, 1]),
        ([0.91, 0.99], [0.9, 0.93, 0.96, 0.99]),
        ([1.0], [0, 0.25, 0.5, 0.75, 1]),
        ([0.1, 0.5], [0, 0.2, 0.4, 0.6]),
    ],
)
def test_a_scale_of_shares_ends_at_all_of_it(values: list[float], marks: list[float]) -> None:
    assert scale_of(values, 1.0) == pytest.approx(marks)


def test_a_saw_is_drawn_thin_below_its_mean() -> None:
    saw = {float(n): 1.0 - n / 100 + 0.2 * (n % 2) for n in range(100)}
    drawn = curve_figure("Loss", "step", [("training", saw, "smoothed")], str)
    assert drawn.count("line faint") == 1 and drawn.count('class="line') == 2 and "training" not in drawn
    paths = re.findall(r' d="(M[^"]+L[^"]+)"', drawn)
    raw, mean = ([float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)] for path in paths)
    assert len(raw) == len(mean) == 100 and mean[0] == raw[0]
    steps = [abs(y - x) for x, y in itertools.pairwise(mean[20:])]
    unit = abs(raw[2] - raw[0]) / 0.02
    assert max(steps) < 0.04 * unit, "a mean of two neighbours of 0.2 apart would leave a saw"
    assert abs(mean[-1] - (raw[-1] + 0.11 * unit)) < 0.12 * unit
    assert "faint" not in curve_figure("Loss", "step", [("t", {n: saw[n] for n in range(5)}, "smoothed")], str)


def test_how_far_it_is_and_how_long_it_will_take() -> None:
    told = head_view(document(), "running", "en")
    assert "<b>10 / 40</b>" in told and "<b>15.0 s</b><span>Remaining</span>" in told
    assert "<b>1</b><span>Reward</span>" in told
    assert "Remaining" not in head_view(document(), "died", "en")
    failed = head_view(document(reason="<out> of memory", curve=[], step=None, step_s=None), "failed", "en")
    assert "&lt;out&gt; of memory" in failed and "failed" in failed


def test_each_figure_has_a_curve() -> None:
    drawn = curves_view(document(evaluations=[{"step": 5, "loss": 0.3}, {"step": 10, "loss": 0.2}]), "en")
    assert re.findall(r"<figcaption>([^<]+)<", drawn) == ["Loss", "Reward", "Learning rate", "Tokens per second"]
    assert "evaluation 0.3 (step 5) → 0.2 (step 10)" in drawn
    assert "training 400 (step 2) → 400 (step 10)" in drawn
    assert "No step" in curves_view(document(curve=[]), "en")


def test_planned_and_measured_fill_the_same_card() -> None:
    drawn = held_view(document(), "en")
    planned, measured = re.findall(r'aria-label="([^"]+)"><i', drawn)
    assert planned.startswith("RAM · planned: weights 80 MiB, gradients 40 MiB, optimizer 160 MiB")
    assert "activations, logits, temporaries 110 MiB" in measured, "what of the peak no tensor of the states takes"
    assert "400 MiB of 500 MiB" in drawn and "410 MiB of 500 MiB" in drawn
    assert '<td class="qs-number">410 MiB</td><td class="qs-number">+2.5 %</td>' in re.sub(r"<td\s+", "<td ", drawn)
    unmeasured = held_view(document(measured={}, memory_source=""), "en")
    assert len(re.findall(r"bar-track", unmeasured)) == 1 and "—" in unmeasured


def test_what_a_model_wrote_is_text() -> None:
    drawn = rollouts_view(document(), "en")
    assert "&lt;b&gt;5&lt;/b&gt;" in drawn and "<b>5" not in drawn
    assert ">rules</th>" in drawn and ">0.5</td>" in drawn
    assert drawn.count("2+3?") == 1, "a prompt stands above the answers to it"
    assert rollouts_view(document(rollouts=[]), "en") == ""


def test_command_and_files_can_be_copied() -> None:
    drawn = configuration_view({"command": ["qserve", "train", "grpo", "--data", "a b"]}, document(), "en")
    assert "qserve train grpo --data &#x27;a b&#x27;" in drawn
    assert "model: demo" in drawn and "accelerate.yaml" in drawn and drawn.count("qs-copy-code") == 2
    assert "accelerate.yaml" not in configuration_view({"command": []}, document(accelerate=""), "en")


async def test_a_look_without_news_changes_nothing() -> None:
    """Gradio takes an empty update for a mistake."""
    with lean_import():  # not above: it takes seconds in every process that collects these tests
        import gradio as gr
    from qserve.ui.pages.shared import Shared
    from qserve.ui.pages.train import TrainPage

    api = Answering()
    with gr.Blocks():
        page = TrainPage(Shared(api, gr.Textbox()))
    first = await page._look("en", None, None)
    assert first[page._run]["value"] == "r1" and "10 / 40" in first[page._views["head"]]
    drawn = first[page._drawn]
    assert await page._look("en", "r1", drawn) == {page._drawn: drawn}
    assert page._views["configuration"] not in await page._look("en", "r1", [*drawn[:2], 0.0, *drawn[3:]])
    api.runs = []
    assert list(await page._look("en", "r1", drawn)) == [page._views["head"]]


class Answering:
    """The API of a server with one run."""

    def __init__(self) -> None:
        one = {"id": "r1", "name": "grpo m", "state": "running", "exit_status": None, "started_unix_s": 1.0}
        self.runs = [{**one, "updated_unix_s": 2.0}]

    async def get(self, path: str) -> Any:
        if path == "/v1/qserve/trainings":
            return {"data": self.runs, "state_dir": "/s"}
        assert path == "/v1/qserve/runs/r1"
        return {"command": ["qserve"], "trainings": [{"document": document()}]}


def test_without_a_run_the_page_says_how_to_start_one() -> None:
    assert f"{EXAMPLE} --state-dir /s" in first_run_view("/s", "en")
    assert "stores no runs" in first_run_view(None, "en")


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("right", [1, 5, 11])
def test_a_model_that_learned_nothing_is_said_to(right: int, language: str) -> None:
    told = head_view(document(held_out=held_out_facts({"pairs": 11, "right": right})), "ended", language)
    assert ('class="qs-error"' in told) == (right < 10)


LABELS = {"by_label": [{"name": "helpful", "mse": 1.2, "mean_mse": 1.0}]}


@pytest.mark.parametrize(
    ("right", "pairs", "accuracy", "quality"),
    [(33, 66, 0.95, None), (20, 66, 0.9, None), (5, 11, 0.5, None), (500, 1000, 0.5, None), (0, 0, 0.5, LABELS)],
)
def test_what_the_page_advises_is_what_the_command_advises(right, pairs, accuracy, quality) -> None:
    held_out = held_out_facts({"pairs": pairs, "right": right} if pairs else {"texts": 40})
    learned = document(held_out=held_out, quality=quality, curve=[{"step": 1, "loss": 0.1, "accuracy": accuracy}])
    told = {language: html.unescape(head_view(learned, "ended", language)) for language in ("en", "zh-CN")}
    assert f">{warning_of(learned)} {advice_on(learned)}<" in told["en"]
    assert f">{said('zh-CN', str(warning_of(learned)))} {said('zh-CN', advice_on(learned))}<" in told["zh-CN"]
    assert not has_english(re.sub("<[^>]*>", " | ", told["zh-CN"]))
