"""What `qserve plan` prints of speed: a row a line within 100 columns."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner
from rich.console import Console

from qserve.cli.main import cli
from qserve.core.hardware import Hardware, parse_gpu
from qserve.hub import resolve
from qserve.planner import plan_request
from qserve.planner.speed.figures import Targets
from qserve.planner.speed.load import Load
from qserve.planner.speed.price import price_table
from qserve.service.layout.fitting_plans import FittingPlans
from qserve.service.layout.search import layouts_for
from qserve.service.load import SpeedRequest
from qserve.terminal import speed as shown
from qserve.units import GIB


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "100")


def test_a_card_a_line_with_the_longest_names() -> None:
    """Of the longest name with a price, with layouts of several servers, and each verdict."""
    hardware = Hardware(parse_gpu("l4:8"), 256 * GIB, 200 * GIB, 32)
    wanted = SpeedRequest(Load(users=30), Targets(ttft_ms=1000.0))
    layouts = layouts_for(FittingPlans(resolve("Qwen/Qwen3-32B")), hardware, plan_request(engine="vllm"), wanted)
    longest = max(price_table(None), key=len)
    text = io.StringIO()
    shown.show_cheapest([(longest, 8, one) for one in layouts], "", Console(file=text, width=100), monthly=True)
    title, lines = (one.splitlines() for one in text.getvalue().partition("TP 2 =")[0].split("\ncards", 1))
    assert title[0].startswith("Qwen/Qwen3-32B, 30 users (1,000 tokens in, 300 out): cheapest cards")
    lines[0] = f"cards{lines[0]}"
    assert len(lines) == len(layouts) + 1
    assert "…" not in text.getvalue()
    assert lines[0].split() == ["cards", "layout", "TTFT", "TPOT", "$/user", "$/month", "$/M", "in", "$/M", "out"]


@pytest.mark.parametrize(
    "asked",
    [["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "any", "--users", "50", "--no-learn"], ["models", "coder-32b"]],
)
def test_tables_fit_eighty_columns_uncut(asked: list[str]) -> None:
    said = CliRunner(env={"COLUMNS": "80"}).invoke(cli, asked, catch_exceptions=False).output
    assert max(map(len, said.splitlines())) <= 80
    assert "…" not in said
    assert "gptq-int4" in said if asked[0] == "models" else "1 × a100-80gb-pcie" in said


def test_the_highest_rate_and_the_prices_stand_in_lines_of_their_own() -> None:
    asked = ["plan", "--model", "Qwen/Qwen3-32B", "--gpu", "rtx-4090", "--users", "30", "--no-learn"]
    said = CliRunner(env={"COLUMNS": "80"}).invoke(cli, asked, catch_exceptions=False).output
    figures = said[said.index("Speed, 30 users") :].splitlines()
    assert "kWh" in figures[9] and "per million answer tokens" in figures[9]
    assert [line.split("  ")[0] for line in figures[1:7]] == ["TTFT", "TPOT", "E2E", "rate", "at most", "price"]
    assert max(map(len, figures)) <= 80


def test_a_ranking_says_what_its_steps_take_and_which_cards_were_measured() -> None:
    asked = ["plan", "--model", "Qwen/Qwen3-8B", "--gpu", "any", "--users", "30", "--no-learn"]
    plain, explained = (
        CliRunner(env={"COLUMNS": "600"}).invoke(cli, [*asked, *more], catch_exceptions=False).output
        for more in ([], ["--explain"])
    )
    assert "a decode step" not in plain
    rows = {line.split(",")[0].removeprefix("· "): line for line in explained.splitlines() if line.startswith("· ")}
    assert "a decode step of" in rows["1 × rtx-4090"]
    assert rows["1 × rtx-4090"].endswith("estimated by the kernels of l40s")
    assert rows["1 × l40s"].endswith("by this card's own kernels")
