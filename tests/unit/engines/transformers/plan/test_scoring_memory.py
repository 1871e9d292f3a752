"""What scoring a prompt (echo with logprobs) keeps in the transformers worker is in every plan."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.plan.memory import (
    SCORING_PIECE_BYTES,
    activation_bytes,
    prefill_bytes,
    scoring_logits_bytes,
)
from qserve.hub.bundled import bundled_config
from qserve.units import MIB
from tests.unit.planner.test_make_plan import plan_of

ENGINE = (
    Path(__file__).parents[5] / "qserve" / "engines" / "transformers" / "worker" / "batching" / "prompt_logprobs.py"
)


def spec_of(model: str) -> ModelSpec:
    return ModelSpec.from_config(bundled_config(model) or {}, model)


def test_the_piece_is_the_workers_own() -> None:
    factors = re.search(r"^_LOGITS_BYTES = (\d+) \* 1024\*\*2$", ENGINE.read_text(), re.MULTILINE)
    assert factors is not None
    assert int(factors[1]) * MIB == SCORING_PIECE_BYTES


def test_a_piece_counts_unless_sampling_needs_more() -> None:
    spec = spec_of("Qwen/Qwen3-0.6B")
    piece = scoring_logits_bytes(spec, "bfloat16", 2048)
    assert 150 * MIB < piece <= 160 * MIB
    few, many = (activation_bytes(spec, "bfloat16", 2048, seqs) for seqs in (8, 1024))
    assert few == prefill_bytes(spec, "bfloat16", 2048) + piece
    assert many - few == 1024 * spec.vocab_size * 6 - piece


def test_of_a_small_vocabulary_no_more_is_scored_at_once_than_a_row_has() -> None:
    spec = replace(spec_of("Qwen/Qwen3-0.6B"), vocab_size=1280)
    assert scoring_logits_bytes(spec, "bfloat16", 1024) == 1024 * 1280 * (2 + 4 + 4)


def test_a_scored_prompt_is_one_row_however_long() -> None:
    fixed = {"engine": "transformers", "max_model_len": 32768, "max_num_batched_tokens": 1024}
    plain, scoring = (
        term.num_bytes
        for wanted in (False, True)
        for term in plan_of("Qwen/Qwen3-0.6B", None, prompt_logprobs=wanted, **fixed).devices[0].terms
        if term.name == "activations"
    )
    assert scoring > 20 * (plain - 160 * MIB)
