"""What lengths that vary cost: nothing where they do not, more the further the mean is from the longest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from qserve.core.hardware import parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.planner.training import CardMemory, TrainingRequest, plan_training
from qserve.planner.training.fragmentation import cached_bytes, fragmentation_term, length_spread
from qserve.planner.training.models import cast_of
from qserve.planner.training.resident import Run
from qserve.planner.training.saved_activations import checkpoint_bytes
from qserve.planner.training.training_constants import FRAGMENTATION
from qserve.units import GIB

SpecOf = Callable[[str], ModelSpec]
LORA = TrainingRequest("lora", micro_batch=4, max_length=1024, precision="amp")
MEANS = (1, 64, 200, 512, 800, 900, 1000, 1024, 5000)


def _card(spec: ModelSpec, mean: int | None, gpu: str = "rtx-4090") -> CardMemory:
    return plan_training(spec, parse_gpu(gpu), replace(LORA, mean_length=mean)).cards[0]


def _run(spec: ModelSpec, request: TrainingRequest) -> Run:
    return Run(request, cast_of(spec, request), 1)


def test_a_mean_as_long_as_the_longest_changes_nothing(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2.5-1.5B")
    assert _card(spec, 1024).used_bytes == _card(spec, 5000).used_bytes == _card(spec, None).used_bytes
    assert length_spread(LORA) == length_spread(replace(LORA, mean_length=1024)) == 0


def test_a_longer_mean_needs_no_more(spec_of: SpecOf) -> None:
    used = [_card(spec_of("Qwen/Qwen2.5-1.5B"), mean).used_bytes for mean in MEANS]
    assert used == sorted(used, reverse=True)
    assert used[0] > used[-1]


def test_it_is_a_part_of_what_varies_and_of_what_is_left(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2.5-1.5B")
    varying = sum(term.num_bytes for term in _card(spec, None).terms if term.name in ("activations", "logits"))
    for mean in MEANS:
        run = _run(spec, replace(LORA, mean_length=mean))
        term = fragmentation_term(run, 100 * GIB)
        assert 0 == term.low_bytes <= term.num_bytes <= term.high_bytes < varying / 2
        assert term.num_bytes <= (1 - min(mean, 1024) / 1024) * varying
        assert fragmentation_term(run, 1000).high_bytes <= 1000
        assert fragmentation_term(run, -1).high_bytes == 0


def test_the_driver_shows_more_where_lengths_vary(spec_of: SpecOf) -> None:
    spec = spec_of("Qwen/Qwen2.5-1.5B")
    cached = [cached_bytes(_run(spec, replace(LORA, mean_length=mean)), 100 * GIB) for mean in (200, 800, 1024)]
    assert cached[1] > cached[0] > GIB
    assert cached[2] == 0
    assert cached_bytes(_run(spec, replace(LORA, mean_length=200)), 7) == 7
    plan = plan_training(spec, parse_gpu("rtx-4090"), replace(LORA, mean_length=200))
    assert any("the driver may show about 4.55 GiB more" in note for note in plan.notes)


@pytest.mark.parametrize("fields", [{"fused_loss": True}, {"tiled_loss": True}])
def test_a_loss_in_chunks_varies_by_its_activations_alone(spec_of: SpecOf, fields: dict[str, bool]) -> None:
    spec, request = spec_of("Qwen/Qwen2.5-1.5B"), replace(LORA, mean_length=200, **fields)
    run = _run(spec, request)
    kept = checkpoint_bytes(run.models[0], request)
    assert fragmentation_term(run, 100 * GIB).num_bytes == round(FRAGMENTATION.expected * kept)
