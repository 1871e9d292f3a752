"""Every format scores as plain transformers does, text by text, whatever it was batched with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from qserve.detect import detect
from qserve.planner import PlanRequest
from qserve.reward.find import find_reward
from qserve.reward.items import Score, ScoreItem
from qserve.reward.load import load_reward_model
from qserve.reward.open import plan_reward
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.make_checkpoints import MADE
from tests.tiny.reward.plain_transformers import Plain

SINGLE = [kind for kind in MADE if kind != "process-reward-model"]


def texts(seed: int, lengths: list[int], vocab_size: int = 1000) -> list[list[int]]:
    rng = Random(seed)
    return [[rng.randrange(vocab_size) for _ in range(length)] for length in lengths]


def rewards(scorer: RewardScorer, ids: list[list[int]]) -> list[float]:
    outcomes = scorer.score_now([ScoreItem(one) for one in ids])
    assert all(isinstance(outcome, Score) for outcome in outcomes), outcomes
    return [outcome.reward for outcome in outcomes if isinstance(outcome, Score)]


@pytest.mark.parametrize("kind", SINGLE)
def test_scores_are_those_of_plain_transformers(kind: str, made: Callable[[str], Path], opened: Opener) -> None:
    ids = texts(1, [1, 2, 17, 64, 65, 200, 33, 5])
    plain = Plain(kind, made(kind))
    meant = [float(plain.values(one)[-1, 0]) for one in ids]
    assert max(meant) - min(meant) > 0.1  # else equality would say little
    assert rewards(opened(kind), ids) == pytest.approx(meant, abs=1e-5)


@pytest.mark.parametrize("kind", SINGLE)
def test_the_format_is_recognised(kind: str, opened: Opener) -> None:
    assert opened(kind).meta["format"] == kind.partition(" ")[0]


def test_a_process_reward_model_scores_every_step(made: Callable[[str], Path], opened: Opener) -> None:
    scorer, plain = opened("process-reward-model"), Plain("process-reward-model", made("process-reward-model"))
    text = "What is 1+1?<extra_0> Add them.<extra_0> It is 2.<extra_0>"
    ids = scorer.template.encode(text).token_ids
    step = plain.tokenizer.convert_tokens_to_ids("<extra_0>")
    places = [index for index, token in enumerate(ids) if token == step]
    assert len(places) == 3
    meant = plain.values(ids)[places].softmax(-1)[:, 1].tolist()
    (score,) = scorer.score_now([ScoreItem(ids)])
    assert isinstance(score, Score)
    assert score.steps == pytest.approx(meant, abs=1e-5)
    assert score.reward == score.steps[-1]
    assert score.position == places[-1]


@pytest.mark.parametrize("kind", ["sequence-classification", "sequence-classification of a hybrid"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_a_score_does_not_depend_on_its_batch(kind: str, dtype: str, tolerance: float, opened: Opener) -> None:
    scorer = opened(kind, dtype=dtype)
    ids = texts(2, [40, 7, 300, 128, 129, 3, 90, 250, 64, 31])
    alone = [rewards(scorer, [one])[0] for one in ids]
    together = rewards(scorer, ids)
    backwards = rewards(scorer, ids[::-1])[::-1]
    assert together == pytest.approx(alone, abs=tolerance)
    assert backwards == pytest.approx(alone, abs=tolerance)


def useful_tokens(scorer: RewardScorer) -> int:
    return scorer.stats.num_computed_tokens - scorer.stats.num_padding_tokens


def test_a_shared_prompt_is_computed_once_and_changes_no_score(opened: Opener) -> None:
    scorer = opened("sequence-classification")
    (prompt,) = texts(3, [150])
    answers = [prompt + tail for tail in texts(4, [20, 1, 33, 20, 64, 7])]
    others = texts(5, [40, 80])
    alone = [rewards(scorer, [one])[0] for one in answers + others]
    before = useful_tokens(scorer)
    assert rewards(scorer, answers + others) == pytest.approx(alone, abs=1e-5)
    assert useful_tokens(scorer) - before == 150 + (20 + 1 + 33 + 20 + 64 + 7) + 40 + 80


def test_a_text_that_is_the_beginning_of_another_is_scored_where_it_ends(opened: Opener) -> None:
    scorer = opened("sequence-classification")
    (long,) = texts(6, [120])
    ids = [long, long[:60], long, long[:61], long[:59]]
    alone = [rewards(scorer, [one])[0] for one in ids]
    assert rewards(scorer, ids) == pytest.approx(alone, abs=1e-5)


def test_rows_are_bounded_and_longer_groups_are_divided(opened: Opener) -> None:
    scorer = opened("sequence-classification")
    (prompt,) = texts(7, [400])
    ids = [prompt + tail for tail in texts(8, [90] * 12)]
    rows, tokens = scorer.stats.num_rows, useful_tokens(scorer)
    together = rewards(scorer, ids)
    assert together == pytest.approx([rewards(scorer, [one])[0] for one in ids], abs=1e-5)
    assert scorer.stats.num_rows - rows == 2 + 12
    assert useful_tokens(scorer) - tokens == 2 * 400 + 12 * 90 + 12 * 490


@pytest.mark.parametrize("quant", ["bnb-int8", "bnb-nf4"])
def test_a_quantized_body_keeps_its_head_in_fp32(quant: str, opened: Opener) -> None:
    scorer = opened("sequence-classification", dtype="bfloat16", quant=quant)
    ids = texts(9, [30, 60])
    meant = rewards(opened("sequence-classification"), ids)
    assert {parameter.dtype for parameter in scorer.loaded.head.parameters()} == {torch.float32}
    # bitsandbytes' own layer, or ours of the same stored weights where there is a compiler.
    linear = scorer.loaded.body.layers[0].mlp.up_proj
    assert type(linear).__name__ in ("Linear4bit", "Linear8bitLt") or linear.matrix.format in quant
    assert scorer.meta["quant"] == quant
    assert rewards(scorer, ids) == pytest.approx(meant, abs=0.5)


def test_a_body_spread_over_memory_and_disk_scores_the_same(made: Callable[[str], Path], opened: Opener) -> None:
    path, settings = made("sequence-classification"), RewardSettings()
    checkpoint = find_reward(str(path), settings)
    plan = plan_reward(checkpoint, detect(), PlanRequest(dtype="float32"))
    places: dict[str, int | str] = {
        "model.embed_tokens": "cpu",
        "model.layers.0": "cpu",
        "model.layers.1": "disk",
        "model.norm": "cpu",
        "lm_head": "cpu",
    }
    spread = replace(plan, placement=replace(plan.placement, device_map=places))
    loaded = load_reward_model(checkpoint, spread)
    assert {parameter.device.type for parameter in loaded.body.layers[1].parameters()} == {"meta"}
    scorer = RewardScorer(loaded, settings, max_length=512, max_num_batched_tokens=512)
    ids = texts(11, [30, 200, 7])
    assert rewards(scorer, ids) == pytest.approx(rewards(opened("sequence-classification"), ids), abs=1e-5)
