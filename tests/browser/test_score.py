"""The score page in a browser: answers to one prompt, and a file of pairs."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import PATIENCE_MS

PREFERENCES = Path(__file__).parents[2] / "evals/qserve_demo/preferences.jsonl"
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture
def page(page: Page) -> Page:
    page.get_by_role("tab", name="Score").click()
    expect(page.locator("#qs-score-prompt")).to_be_visible()
    return page


def rows_of(page: Page) -> list[list[str]]:
    expect(page.locator("#qs-score-result table")).to_be_visible()
    return [row.locator("td").all_inner_texts() for row in page.locator("#qs-score-result tbody tr").all()]


def test_answers_are_ranked_by_their_rewards(page: Page, stack) -> None:
    page.locator("#qs-score-prompt textarea").fill("What is 17 + 25?")
    for number, answer in enumerate(("41", "42", "43"), start=1):
        page.locator(f"#qs-answer-{number} textarea").fill(answer)
    page.locator("#qs-score").click()
    rows = rows_of(page)
    told = page.context.request.post(
        "/v1/reward",
        headers={"authorization": f"Bearer {stack.key}"},
        data={"prompt": "What is 17 + 25?", "responses": ["41", "42", "43"]},
    ).json()
    assert [row[0] for row in rows] == [f"Answer {index + 1}" for index in told["ranking"]]
    assert rows[0][0] == "Answer 2"
    rewards = {f"Answer {row['index'] + 1}": row["reward"] for row in told["data"]}
    assert all(abs(float(reward) - rewards[name]) < 0.05 for name, reward, _ in rows)
    margin = float(rows[0][1]) - float(rows[1][1])
    expect(page.locator("#qs-score-result .qs-tiles")).to_contain_text(f"{margin:.3f}")
    expect(page.locator("#qs-score-result .cgood")).to_have_count(1)
    expect(page.locator("#qs-score-result .axis").first).to_have_css("box-shadow", "none")  # else the ground covers it


def test_an_example_scores_with_one_click(page: Page) -> None:
    page.locator(".qs-example").first.click()
    assert rows_of(page)[0][0] == "Answer 1"
    page.locator("#qs-score-clear").click()
    expect(page.locator("#qs-score-prompt textarea")).to_have_value("")


def test_what_can_not_be_scored_is_a_sentence(page: Page) -> None:
    page.locator("#qs-score").click()
    expect(page.locator("#qs-score-result .qs-error")).to_have_text("Enter a prompt and at least one answer.")
    page.locator("#qs-score-prompt textarea").fill("Explain.")
    page.locator("#qs-answer-1 textarea").fill("First.\nSecond.")
    page.locator("#qs-steps input").check()
    page.locator("#qs-score").click()
    expect(page.locator("#qs-score-result .qs-error")).to_contain_text("not a process reward model")


def score_file(page: Page, file: Path) -> None:
    page.locator("#qs-file input[type=file]").set_input_files(file)
    expect(page.locator("#qs-file")).to_contain_text(file.suffix)
    page.locator("#qs-score-run").click()


def test_a_file_of_pairs_is_scored_drawn_and_given_back(page: Page, tmp_path: Path) -> None:
    pairs = [json.loads(line) for line in PREFERENCES.read_text().splitlines()[:70]]
    pairs = [{**pair, "prompt": pair["prompt"][-1]["content"]} for pair in pairs]
    file = tmp_path / "pairs.csv"
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, ["prompt", "chosen", "rejected"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(pairs)
    score_file(page, file)
    result = page.locator("#qs-file-result")
    expect(result).to_contain_text("accuracy")
    expect(result.locator("figure.chart rect").first).to_be_attached()
    with page.expect_download() as waited:
        page.locator("#qs-score-download").click()
    waited.value.save_as(tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as scored:
        rows = list(csv.DictReader(scored))
    assert waited.value.suggested_filename == "pairs-scored.csv"
    assert [row["prompt"] for row in rows] == [pair["prompt"] for pair in pairs]
    margins = [float(row["chosen_reward"]) - float(row["rejected_reward"]) for row in rows]
    accuracy = sum(margin > 0 for margin in margins) / len(margins)
    assert all(abs(float(row["margin"]) - margin) < 1e-6 for row, margin in zip(rows, margins, strict=True))
    expect(result.locator(".qs-tiles")).to_contain_text(re.compile(rf"{100 * accuracy:.1f} %\s*accuracy\s*70\s*pairs"))


def test_a_broken_file_is_told_by_its_line_and_not_by_its_place(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('{"prompt": "a", "chosen": "b", "rejected": "c"}\n{"prompt": "a"}\n')
    score_file(page, file)
    failure = page.locator("#qs-file-result .qs-error")
    expect(failure).to_contain_text("broken.jsonl, line 2: the row has the one field prompt")
    assert "/" not in failure.inner_text().split("line 2")[0]
