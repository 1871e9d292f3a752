"""A reward model whose body somebody quantized: read as it is stored on a CPU, by the same products as chat models."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.demo import reward_model_path
from qserve.detect import detect
from qserve.model.cpu.build import why_none
from qserve.model.cpu.linear import CompiledLinear
from qserve.model.packed_cache import start as starts
from qserve.model.packed_cache.folder import PackedFolder
from qserve.planner import PlanRequest
from qserve.reward import load as loading
from qserve.reward.items import Score, ScoreItem
from qserve.reward.open import find_reward, make_scorer, open_scorer, plan_reward
from qserve.reward.settings import RewardSettings
from qserve.units import GIB
from tests.tiny.engine.stored_checkpoints import as_gptq, make_of


@pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
def test_a_gptq_body_scores_without_gptqmodel(tmp_path: Path) -> None:
    quantization = {"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True, "desc_act": False}
    folder = make_of(
        reward_model_path(), tmp_path / "reward", lambda stem, weight: as_gptq(stem, weight, bits=8), quantization
    )
    request = PlanRequest()
    packed, plain = (open_scorer(str(path), RewardSettings(), detect(), request) for path in (folder, "demo"))
    linears = [module for module in packed.loaded.body.modules() if isinstance(module, CompiledLinear)]
    assert {one.matrix.format for one in linears} == {"int8"}
    items = [ScoreItem(packed.loaded.tokenizer(text).input_ids) for text in ("12+30=42", "12+30=41")]
    theirs, ours = (
        [score.reward for score in one.score_now(items) if isinstance(score, Score)] for one in (plain, packed)
    )
    assert len(ours) == len(theirs) == len(items)
    assert ours == pytest.approx(theirs, abs=0.1)


@pytest.mark.skipif(why_none() is not None, reason=str(why_none()))
def test_a_packed_body_is_mapped_by_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starts, "_WORTH_KEEPING_BYTES", 0)
    checkpoint = find_reward("demo", RewardSettings())
    plan = plan_reward(checkpoint, detect(), PlanRequest(dtype="bfloat16", quant="bnb-int8"))
    folder = PackedFolder(tmp_path / "packed", GIB)
    made = make_scorer(checkpoint, plan, RewardSettings(), folder)
    [(path, _)] = folder.entries()
    monkeypatch.setattr(loading, "in_flight_config", lambda *_: pytest.fail("it was quantized again"))
    mapped = make_scorer(checkpoint, plan, RewardSettings(), folder)
    assert str(path) in Path("/proc/self/maps").read_text()
    items = [ScoreItem(made.loaded.tokenizer(text).input_ids) for text in ("12+30=42", "12+30=41")]
    ours, theirs = (
        [score.reward for score in one.score_now(items) if isinstance(score, Score)] for one in (mapped, made)
    )
    assert ours == theirs
    assert len(ours) == len(items)
    linears = [module for module in mapped.loaded.body.modules() if isinstance(module, CompiledLinear)]
    assert {one.matrix.format for one in linears} == {"int8"}
    assert not any(parameter.requires_grad for parameter in mapped.loaded.body.parameters())
