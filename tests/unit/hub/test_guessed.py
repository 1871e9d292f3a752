"""Checkpoints whose packing is told by their name alone: as large as it can be, as small as it can be, and said."""

from __future__ import annotations

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.hub import resolve
from qserve.hub.guessed import layouts_by_name
from qserve.units import GIB


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def gib_of(checkpoint: Checkpoint) -> float:
    """Without the drafter, which is not loaded."""
    return sum(tensor.nbytes for tensor in tensors_of(checkpoint.spec) if tensor.role != "mtp") / GIB


# Public figures of checkpoints of each name: what it can mean has them between its smallest and its largest.
# friendli.ai/models/natfii/Qwen3.6-27B-VLM-NVFP4-MTP (20.6 GB with 0.85 of the drafter), Inferact/Qwen3.8-27B-NVFP4,
# RadixArk/Qwen3.8-27B-NVFP4 (github.com/noonghunna/club-3090/issues/1047), Lorbus/Qwen3.6-27B-int4-AutoRound
# (github.com/noonghunna/club-3090/issues/142), LibertAIDAI/Qwen3.6-27B-W4A16-G128 (19 GiB), ThakiCloud's
# Qwen3-30B-A3B; unsloth, cyankiwi, goldhub, GPTQ by Qwen, groxaxo and palmfuture: public index, id 71124810209 (files
# have 0.79 GiB of the drafter).
@pytest.mark.parametrize(
    ("model", "measured_gib"),
    [
        ("natfii/Qwen3.6-27B-NVFP4", 18.4),
        ("someone/Qwen3.8-27B-NVFP4", 23.78),
        ("RadixArk/Qwen3.8-27B-NVFP4", 19.75),
        ("Lorbus/Qwen3.6-27B-int4-AutoRound", 17.69),
        ("LibertAIDAI/Qwen3.6-27B-W4A16-G128", 18.2),
        ("ThakiCloud/Qwen3-30B-A3B-NVFP4", 16.87),
        ("unsloth/Qwen3.8-27B-unsloth-bnb-4bit", 20.02),
        ("cyankiwi/Qwen3.6-27B-AWQ-BF16-INT4", 25.58),
        ("goldhub/Qwen3.8-27B-BF16-INT4-W4A16-G32-AutoRound", 25.58),
        ("someone/Qwen3.5-27B-GPTQ-Int4", 27.37),
        ("someone/Qwen3.5-27B-GPTQ", 17.43),
        ("someone/Qwen3.8-27B-GPTQ-Int4", 18.75),
        ("someone/Qwen3.6-35B-A3B-GPTQ-Int4", 21.15),
    ],
)
def test_what_a_name_can_mean_holds_what_checkpoints_of_it_have(model: str, measured_gib: float) -> None:
    found = resolve(model.replace("RadixArk/", "someone/"))
    assert found.lighter is not None
    assert gib_of(found.lighter) * 0.99 <= measured_gib <= gib_of(found) * 1.01


@pytest.mark.parametrize(
    "model",
    [
        "a/Qwen3.6-27B-NVFP4",
        "a/Qwen3.6-27B-FP8",
        "a/Qwen3.6-27B-FP8-dynamic",
        "a/Qwen3.5-9B-AWQ-4bit",
        "a/Qwen3-8B-quantized.w4a16",
        "a/Qwen3-Next-80B-A3B-Instruct-NVFP4",
        "a/Qwen3-30B-A3B-Instruct-2507-AWQ",
    ],
)
def test_both_layouts_are_named_and_the_larger_is_the_checkpoint(model: str) -> None:
    found = resolve(model)
    assert found.lighter is not None
    assert gib_of(found.lighter) < gib_of(found)
    assert found.layout in found.guess
    assert found.lighter.layout in found.guess
    assert f"{gib_of(found):.2f} GiB ({found.layout})" in found.guess
    assert "give its folder, or let qserve plan reach the hub once" in found.guess


@pytest.mark.parametrize("model", ["a/Qwen3-8B-NVFP4", "a/Qwen3-8B-bnb-4bit"])
def test_a_name_with_one_meaning_is_a_guess_too(model: str) -> None:
    found = resolve(model)
    assert found.lighter is None
    assert found.guess.startswith("A guess by its name:")


def test_revisions_that_are_known_take_the_place_of_what_a_name_can_mean() -> None:
    named = layouts_by_name("unsloth/Qwen3.6-27B-NVFP4")
    assert named is not None
    assert [one.words for one in named.layouts] == [
        "the inputs of linear attention in 16 bit",
        "attention, linear attention and the head in fp8",
    ]
    told = resolve("unsloth/Qwen3.6-27B-NVFP4").guess
    assert told.startswith(
        "It changed by revision: unsloth/Qwen3.6-27B-NVFP4 can't be read here, and its revisions have"
    )
    assert "by its name" not in told and "let qserve plan reach the hub once" in told


def test_what_is_read_or_known_is_no_guess() -> None:
    for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B-AWQ", "nvidia/Qwen3-8B-NVFP4"):
        found = resolve(model)
        assert (found.guess, found.lighter) == ("", None)
