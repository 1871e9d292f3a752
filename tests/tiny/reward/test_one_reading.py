"""A preference has one reward, however it is written and whoever is asked; what says the same is a tie."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qserve.cli.reward.eval_reward import command as eval_reward
from qserve.cli.reward.source import local_rewards
from qserve.cli.reward.texts import TextToScore
from qserve.reward.evaluation.records import read_records
from qserve.reward.items import Score, ScoreItem
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import SIMPLE, Host
from tests.unit.rows.forms import TOOLS, answer, call, openai, user

ASKED = user("What is 17+25?")
PLAIN = {"prompt": [ASKED], "chosen": [answer("42")], "rejected": [answer("41")]}
FORMS: dict[str, dict[str, Any]] = {
    "texts": {"prompt": ASKED["content"], "chosen": "42", "rejected": "41"},
    "ultrafeedback": {"prompt": ASKED["content"], "chosen": [ASKED, answer("42")], "rejected": [ASKED, answer("41")]},
    "whole": {"chosen": [ASKED, answer("42")], "rejected": [ASKED, answer("41")]},
    "hh": {
        "chosen": "\n\nHuman: What is 17+25?\n\nAssistant: 42",
        "rejected": "\n\nHuman: What is 17+25?\n\nAssistant: 41",
    },
}
CALLING = {"prompt": [ASKED], "chosen": [openai(call({"a": 17}))], "rejected": [answer("41")], "tools": TOOLS}


class Uneven:
    """A scorer whose rewards differ by their place, as those of rows of other lengths do by rounding."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def score(self, items: Sequence[ScoreItem], flow: Any = None) -> list[Score]:
        return self._shifted(await self._inner.score(items, flow))

    def score_now(self, items: Sequence[ScoreItem]) -> list[Any]:
        return self._shifted(self._inner.score_now(items))

    @staticmethod
    def _shifted(scores: Sequence[Any]) -> list[Any]:
        return [replace(score, reward=score.reward + 1e-5 * place) for place, score in enumerate(scores)]


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened(SIMPLE, truncate="refuse"))
    yield one
    one.close()


@pytest.fixture(scope="module")
def uneven(opened: Opener) -> Iterator[Host]:
    one = Host(Uneven(opened(SIMPLE, truncate="left")))  # type: ignore[arg-type]
    yield one
    one.close()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_has_the_same_rewards(host: Host, form: str) -> None:
    (meant,) = host.post("/v1/reward", pairs=[PLAIN])["pairs"]
    (found,) = host.post("/v1/reward", pairs=[FORMS[form]])["pairs"]
    assert found == meant


def test_tools_and_calls_are_scored_as_the_template_writes_them(host: Host, tmp_path: Path) -> None:
    (with_tools,) = host.post("/v1/reward", pairs=[CALLING])["pairs"]
    (without,) = host.post("/v1/reward", pairs=[{**CALLING, "tools": None}])["pairs"]
    assert with_tools["rejected_reward"] != without["rejected_reward"]
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps(CALLING) + "\n")
    (record,) = read_records(file)
    rows = host.post("/v1/reward", conversations=list(record.contents))["data"]
    assert [row["reward"] for row in rows] == [with_tools["chosen_reward"], with_tools["rejected_reward"]]
    (asked,) = host.post("/v1/reward", prompt=[ASKED], responses=["41"], tools=json.dumps(TOOLS))["data"]
    assert asked["reward"] == pytest.approx(with_tools["rejected_reward"], rel=1e-5)  # alone in its row
    assert without["rejected_reward"] != pytest.approx(with_tools["rejected_reward"], rel=1e-5)


def test_whole_texts_end_as_trainers_end_them(host: Host) -> None:
    texts = {"chosen": "17+25 is 42", "rejected": "17+25 is 41"}
    (pair,) = host.post("/v1/reward", pairs=[texts])["pairs"]
    ended = [text + host.scorer.loaded.tokenizer.eos_token for text in texts.values()]
    rows = host.post("/v1/reward", texts=ended)["data"]
    assert [row["reward"] for row in rows] == [pair["chosen_reward"], pair["rejected_reward"]]


SAME = [
    {"prompt": [ASKED], "chosen": "42", "rejected": "42"},
    # The demo's template leaves thoughts out.
    {"prompt": [ASKED], "chosen": "42", "rejected": "<think>17 and 25</think>42"},
]


def test_what_says_the_same_is_a_tie_whatever_rounding_says(uneven: Host) -> None:
    pairs = uneven.post("/v1/reward", pairs=[PLAIN, *SAME])["pairs"]
    assert [pair.get("tie", False) for pair in pairs] == [False, True, True]
    assert [pair["margin"] for pair in pairs[1:]] == [0.0, 0.0]


def test_texts_scored_here_are_even_too(opened: Opener, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps(pair) + "\n" for pair in SAME))
    contents = [content for record in read_records(file) for content in record.contents]
    parts = local_rewards(Uneven(opened(SIMPLE)))([TextToScore(one, 1) for one in contents])  # type: ignore[arg-type]
    assert len({row["reward"] for part in parts for row in part}) == 1


def test_eval_reward_tells_how_many_ties_there_are(
    uneven: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("QSERVE_API_KEY", "internal-key")
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({**pair, "mood": 1}) + "\n" for pair in (PLAIN, *SAME)))
    told = CliRunner().invoke(eval_reward, [str(file), "--url", uneven.url])
    assert told.exit_code == 0, told.output
    assert "2 ties (equal texts or equal rewards), which count as not right" in told.output
    assert "note: fields that are not read: 'mood' 3×" in told.stderr
    assert "(1 of 3 preferences)" in told.output or "(0 of 3 preferences)" in told.output
