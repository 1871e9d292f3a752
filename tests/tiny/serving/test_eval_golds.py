"""Items whose gold is none of their choices are left out, named by task and number, and make a result unusable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qserve.errors import UnusableResult
from qserve.evaluation.results import EvalResult
from qserve.evaluation.tasks import load_tasks
from tests.tiny.serving.called_here import said
from tests.tiny.serving.served import Service

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")
pytestmark = pytest.mark.filterwarnings("default")  # what lm-eval's packages warn of is theirs

YAML = """task: golds
dataset_path: json
dataset_kwargs: {data_files: {test: items.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: choices
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
GOOD: dict[str, Any] = {"question": "What is 1+1?", "choices": ["1", "2"], "gold": 1}
BAD: dict[str, dict[str, Any]] = {
    "gold 2 is not one of its choices 0 to 1": {"gold": 2},
    "gold -100 is not one": {"gold": -100},
    "gold -1 is not one": {"gold": -1},
    "it has no choices": {"choices": []},
    "it has no gold": {"gold": None},
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path_factory.getbasetemp() / "datasets"))


def written(folder: Path, items: list[dict[str, Any]], yaml: str = YAML) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "items.jsonl").write_text("\n".join(json.dumps({**GOOD, **one}) for one in items))
    file = folder / "golds.yaml"
    file.write_text(yaml)
    return file


def left_out(file: Path, limit: int | None = None) -> dict[int, str]:
    found = load_tasks((str(file),)).unscorable(limit)
    return dict(found["golds"].whys) if found else {}


@pytest.mark.parametrize("why", BAD)
@pytest.mark.parametrize("place", [0, 2])
def test_each_kind_is_found_wherever_it_stands(tmp_path: Path, why: str, place: int) -> None:
    items: list[dict[str, Any]] = [{}, {}, {}, {}]
    items[place] = BAD[why]
    found = left_out(written(tmp_path, items))
    assert list(found) == [place] and why in found[place]


def test_golds_that_are_texts_and_lists(tmp_path: Path) -> None:
    texts = [{"gold": "2"}, {"gold": "3"}, {"gold": ""}, {"gold": "1"}]
    assert list(left_out(written(tmp_path / "texts", texts))) == [1, 2]
    lists = [{"gold": [0, 1]}, {"gold": [1, 7]}, {"gold": []}, {"gold": [-100]}, {"gold": [1]}]
    assert list(left_out(written(tmp_path / "lists", lists))) == [1, 2, 3]
    several = [{"gold": ["1", "2"]}, {"gold": ["9"]}]
    with pytest.raises(UnusableResult, match=r"there is nothing to ask: golds: 2 of 2 .*\(item 0: "):
        load_tasks((str(written(tmp_path / "several", several)),))


def test_a_limit_counts_what_stands_before_its_last_item(tmp_path: Path) -> None:
    file = written(tmp_path, [{"gold": 9}, {}, {"gold": 9}, {}, {"gold": 9}])
    assert [list(left_out(file, limit)) for limit in (1, 2, 3)] == [[0], [0, 2], [0, 2, 4]]


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(
    golds=st.lists(st.integers(-3, 4), min_size=1, max_size=8).filter(lambda all_: any(0 <= one < 2 for one in all_))
)
def test_what_is_left_is_what_lm_eval_can_score(tmp_path_factory: pytest.TempPathFactory, golds: list[int]) -> None:
    file = written(tmp_path_factory.mktemp("golds"), [{"gold": one} for one in golds])
    assert list(left_out(file)) == [number for number, one in enumerate(golds) if not 0 <= one < 2]


def test_the_command_names_them_and_ends_with_status_6(service: Service, tmp_path: Path) -> None:
    file = written(tmp_path, [{}, {"gold": 5}, {}, {"choices": []}])
    asked = ("eval", "--url", service.url, "--tasks", str(file), "--state-dir", str(tmp_path / "state"))
    with pytest.raises(
        UnusableResult, match=r"golds: 2 of 4 items can't be scored \(item 1: gold 5 .*; item 3: "
    ) as at:
        said(*asked, "--out", str(tmp_path / "out"))
    assert at.value.exit_status == 6
    (score,) = EvalResult.load(tmp_path / "out").scores()
    assert score.num_items == 2
    told = said(*asked, "--out", str(tmp_path / "more"), "--max-truncated", "50", "--no-resume")
    assert (
        "item 1: gold 5 is not one of its choices 0 to 1; item 3: it has no choices); they were left out"
        in " ".join(told.split())
    )
