"""Scores are read where transformers' own class reads a text: at the last token that is not the pad token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import PeftModel
from transformers import AutoModelForSequenceClassification

from qserve.cli.reward.command import command as reward
from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.evaluation.reference import plain_scorer
from qserve.reward.find import find_reward
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import open_scorer, plan_reward
from qserve.reward.scoring.pooling import PoolingRule
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings

PAD = 7
PADS: tuple[int | None, ...] = (PAD, 0, None)
KINDS = (
    "sequence-classification",
    "sequence-classification of a hybrid",
    "sequence-classification of a sliding window",
    "multi-attribute",
    "lora",
)
# Short alphabets, so that the pad token stands everywhere.
TEXTS = st.lists(st.lists(st.sampled_from((PAD, 0, 1, 40, 41)), min_size=1, max_size=40), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def padded(made: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int | None], Path]:
    """`padded(kind, pad)`: the checkpoint of that kind whose config.json names this pad token, or none."""

    @cache
    def make(kind: str, pad: int | None) -> Path:
        path = made(kind)
        root, copy = path.parent, tmp_path_factory.mktemp("padded") / "copy"
        shutil.copytree(root, copy)
        name_pad(copy / ("base" if kind == "lora" else path.name), pad)
        if kind == "lora":
            written = copy / "adapter" / "adapter_config.json"
            written.write_text(written.read_text().replace(str(root), str(copy)))
        return copy / path.name

    return make


def name_pad(folder: Path, pad: int | None) -> None:
    data = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**data, "pad_token_id": pad}))


@pytest.fixture(scope="module")
def scorer(padded: Callable[[str, int | None], Path]) -> Callable[[str, int | None], RewardScorer]:
    @cache
    def opened(kind: str, pad: int | None) -> RewardScorer:
        return open_scorer(str(padded(kind, pad)), RewardSettings(), detect(), PlanRequest(dtype="float32"))

    return opened


@pytest.fixture(scope="module")
def plain(padded: Callable[[str, int | None], Path]) -> Callable[[str, int | None], Any]:
    """The class as a script loads it: nothing of qserve."""

    @cache
    def loaded(kind: str, pad: int | None) -> Any:
        path, labels = padded(kind, pad), 5 if kind == "multi-attribute" else 1
        folder = path.parent / "base" if kind == "lora" else path
        model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, num_labels=labels)
        return (PeftModel.from_pretrained(model, str(path)) if kind == "lora" else model).eval()

    return loaded


@torch.no_grad()
def forward(model: Any, ids: list[list[int]], pad: int | None) -> list[float]:
    """The mean of the labels, of a batch padded on the right where the class takes one."""
    if pad is None:
        return [float(model(input_ids=torch.tensor([one])).logits[0].mean()) for one in ids]
    longest = max(map(len, ids))
    rows = torch.tensor([one + [pad] * (longest - len(one)) for one in ids])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids])
    return [float(row.mean()) for row in model(input_ids=rows, attention_mask=mask).logits]


@pytest.mark.parametrize("pad", PADS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=TEXTS)
def test_scores_are_those_of_the_class_forward(
    kind: str, pad: int | None, scorer: Callable[..., RewardScorer], plain: Callable[..., Any], ids: list[list[int]]
) -> None:
    outcomes = scorer(kind, pad).score_now([ScoreItem(one) for one in ids])
    found = [outcome.reward for outcome in outcomes if isinstance(outcome, Score)]
    assert found == pytest.approx(forward(plain(kind, pad), ids, pad), abs=2e-5)


@pytest.mark.parametrize(
    ("ids", "place"), [([1, 40, 41], 2), ([1, 40, PAD], 1), ([1, PAD, PAD], 0), ([PAD, PAD], 0), ([PAD, 1, PAD, 40], 3)]
)
def test_the_place_is_told(ids: list[int], place: int, scorer: Callable[..., RewardScorer]) -> None:
    (score,) = scorer("sequence-classification", PAD).score_now([ScoreItem(ids)])
    assert isinstance(score, Score)
    assert score.position == place


@pytest.mark.parametrize("kind", ["sequence-classification", "lora", "multi-attribute"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=TEXTS)
def test_the_reference_is_the_class_itself(
    kind: str, padded: Callable[..., Path], plain: Callable[..., Any], ids: list[list[int]]
) -> None:
    of = reference(str(padded(kind, PAD)))
    assert of.source.endswith("ForSequenceClassification")
    found = [sum(values) / len(values) for values in map(of.values, ids)]
    assert found == pytest.approx(forward(plain(kind, PAD), ids, PAD), abs=2e-5)


@cache
def reference(path: str) -> Any:
    checkpoint = find_reward(path, RewardSettings())
    plan = plan_reward(checkpoint, detect(), PlanRequest(dtype="float32", quant="fp32"))
    return plain_scorer(checkpoint, plan, RewardSettings())


def test_the_class_stands_around_what_transformers_does_not_find(
    padded: Callable[..., Path], plain: Callable[..., Any], tmp_path: Path
) -> None:
    """A training script's single file: the class's forward over weights that our loader found."""
    whole = padded("sequence-classification", PAD)
    torch.save(plain("sequence-classification", PAD).state_dict(), tmp_path / "model.pt")
    given_base = RewardSettings(base=str(whole))
    checkpoint = find_reward(str(tmp_path / "model.pt"), given_base)
    plan = plan_reward(checkpoint, detect(), PlanRequest(dtype="float32", quant="fp32"))
    ids = [[1, 40, PAD, PAD], [41, 40]]
    found = [plain_scorer(checkpoint, plan, given_base).values(one)[0] for one in ids]
    assert found == pytest.approx(forward(plain("sequence-classification", PAD), ids, PAD), abs=2e-5)


def test_check_sees_a_scorer_that_reads_elsewhere(
    padded: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The truth shares no code with the scorer: a rule that reads the wrong token shows as a difference."""
    model, file = padded("sequence-classification", PAD), tmp_path / "texts.jsonl"
    pad = reference(str(model)).tokenizer.decode([PAD])
    lines = [{"text": f"one {number} two{pad}"} for number in range(4)]
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    arguments = ["check", str(file), "--reward", str(model), "--dtype", "float32", "--quants", "fp32"]

    def difference() -> float:
        done = CliRunner().invoke(reward, [*arguments, "--json"])
        assert done.exit_code == 0, done.output
        assert "Qwen3ForSequenceClassification" in done.stderr
        return float(json.loads(done.stdout)["quantizations"]["fp32"]["largest_difference"])

    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    assert difference() < 1e-5
    monkeypatch.setattr(PoolingRule, "_last_not_pad", lambda self, item: len(item.token_ids) - 1)
    assert difference() > 1e-3


def test_a_merged_model_beside_its_adapters_files_is_scored_as_it_is(
    made: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as the adapter's base with the adapter on it, and the note names what is left out."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    merged, adapter = tmp_path / "merged", made("lora")
    shutil.copytree(made("sequence-classification"), merged)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(adapter / name, merged / name)
    found = find_reward(str(merged), RewardSettings())
    assert (found.format, found.adapter) == ("sequence-classification", None)
    assert any("adapter_model.safetensors" in note for note in found.notes)
    ids = [[1, 40, 41], [41, 2]]
    scored = open_scorer(str(merged), RewardSettings(), detect(), PlanRequest(dtype="float32"))
    plain = AutoModelForSequenceClassification.from_pretrained(made("sequence-classification"), dtype=torch.float32)
    meant = forward(plain.eval(), ids, None)
    outcomes = scored.score_now([ScoreItem(one) for one in ids])
    assert [one.reward for one in outcomes if isinstance(one, Score)] == pytest.approx(meant, abs=2e-5)
    truth = reference(str(merged))
    assert [truth.values(one)[0] for one in ids] == pytest.approx(meant, abs=2e-5)


def test_an_adapters_own_config_goes_before_its_base(padded: Callable[..., Path], tmp_path: Path) -> None:
    adapter = padded("lora", None)
    shutil.copytree(adapter.parent, tmp_path / "copy")
    (tmp_path / "copy" / "adapter" / "config.json").write_text(json.dumps({"pad_token_id": PAD}))
    found = find_reward(str(tmp_path / "copy" / "adapter"), RewardSettings())
    assert (found.pooling, found.pad_token_id) == ("not-pad", PAD)
    assert find_reward(str(adapter), RewardSettings()).pooling == "last"
