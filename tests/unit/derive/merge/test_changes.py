"""Which tensors of a base an adapter changes, by names and shapes alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.derive.merge.adapter import Adapter
from qserve.derive.merge.changes import changes_of, plain_name
from qserve.errors import BrokenCheckpoint, UsageError
from qserve.reward.checkpoints import StoredTensor

Q = "layers.0.self_attn.q_proj"


def stored(**shapes: tuple[int, ...]) -> dict[str, StoredTensor]:
    return {name: StoredTensor(name, "BF16", shape, Path("model.safetensors")) for name, shape in shapes.items()}


def adapter(**shapes: tuple[int, ...]) -> Adapter:
    tensors = tuple(
        StoredTensor(f"base_model.model.{name}", "F32", shape, Path("a.safetensors")) for name, shape in shapes.items()
    )
    return Adapter(Path("adapter"), "org/base", None, False, {}, tensors)


BASE = stored(**{f"model.{Q}.weight": (8, 4), "model.embed_tokens.weight": (32, 4), "lm_head.weight": (32, 4)})


@pytest.mark.parametrize("nesting", ["", "model.", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize("trained_in", ["model.", "model.language_model."])
def test_a_module_is_found_however_base_and_trainer_nest_the_language_model(nesting: str, trained_in: str) -> None:
    base = stored(**{f"{nesting}{Q}.weight": (8, 4), "mtp.layers.0.self_attn.q_proj.weight": (8, 4)})
    found = changes_of(
        adapter(**{f"{trained_in}{Q}.lora_A.weight": (2, 4), f"{trained_in}{Q}.lora_B.weight": (8, 2)}), base
    )
    assert list(found.low_rank) == [f"{nesting}{Q}.weight"]
    assert found.low_rank[f"{nesting}{Q}.weight"].rank == 2
    assert not found.replaced and not found.added


def test_saved_modules_take_the_place_of_the_bases_and_heads_are_new() -> None:
    found = changes_of(
        adapter(
            **{"model.embed_tokens.modules_to_save.weight": (32, 4), "lm_head.weight": (32, 4), "score.weight": (1, 4)}
        ),
        BASE,
    )
    assert set(found.replaced) == {"model.embed_tokens.weight", "lm_head.weight"}
    assert list(found.added) == ["score.weight"] and found.adds_head
    assert found.names == {"model.embed_tokens.weight", "lm_head.weight", "score.weight"}


def test_factors_of_an_embedding_are_transposed() -> None:
    parts = {"model.embed_tokens.lora_embedding_A": (2, 32), "model.embed_tokens.lora_embedding_B": (4, 2)}
    assert changes_of(adapter(**parts), BASE).low_rank["model.embed_tokens.weight"].shape == (32, 4)


@pytest.mark.parametrize(
    ("tensors", "kind", "words"),
    [
        ({f"model.{Q}.lora_A.weight": (2, 4)}, BrokenCheckpoint, "has no lora_B of model.layers.0"),
        (
            {f"model.{Q}.lora_A.weight": (2, 4), f"model.{Q}.lora_B.weight": (8, 3)},
            BrokenCheckpoint,
            "do not belong together: \\[2, 4\\] and \\[8, 3\\]",
        ),
        (
            {f"model.{Q}.lora_A.weight": (2, 5), f"model.{Q}.lora_B.weight": (8, 2)},
            BrokenCheckpoint,
            "is for a layers.0.self_attn.q_proj.weight of \\[8, 5\\], and the base's is \\[8, 4\\]",
        ),
        (
            {"model.layers.9.mlp.up_proj.lora_A.weight": (2, 4), "model.layers.9.mlp.up_proj.lora_B.weight": (8, 2)},
            BrokenCheckpoint,
            "adapts layers.9.mlp.up_proj.weight, which the base does not have.*'org/base'",
        ),
        ({"model.embed_tokens.token_adapter.delta": (2, 4)}, UsageError, "does not know how to merge"),
        ({f"model.{Q}.lora_C.weight": (2, 4)}, UsageError, "does not know how to merge"),
        ({}, BrokenCheckpoint, "holds no weights"),
    ],
)
def test_what_does_not_belong_to_the_base_is_refused(
    tensors: dict[str, tuple[int, ...]], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        changes_of(adapter(**tensors), BASE)


def test_towers_and_drafters_keep_their_names() -> None:
    assert plain_name("model.visual.blocks.0.attn.qkv.weight") == "visual.blocks.0.attn.qkv.weight"
    assert plain_name("mtp.layers.0.mlp.up_proj.weight") == "mtp.layers.0.mlp.up_proj.weight"
