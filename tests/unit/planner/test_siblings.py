"""Relatives of a model by its name."""

from __future__ import annotations

import pytest

from qserve.planner.siblings import known_config, smaller_ids


@pytest.mark.parametrize(
    ("model", "some", "none"),
    [
        ("Qwen/Qwen3-32B", {"Qwen/Qwen3-14B", "Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-0.6B"}, "Qwen/Qwen3-8B-Base"),
        ("Qwen/Qwen3-32B-AWQ", {"Qwen/Qwen3-14B"}, "Qwen/Qwen3-32B"),
        ("Qwen/Qwen2.5-72B-Instruct", {"Qwen/Qwen2.5-7B-Instruct"}, "Qwen/Qwen2.5-7B"),
        ("Qwen/Qwen3-VL-32B-Instruct", {"Qwen/Qwen3-VL-8B-Instruct"}, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", {"Qwen/Qwen3-4B-Instruct-2507"}, "Qwen/Qwen3-4B"),
        ("Qwen/Qwen3.8-27B", {"Qwen/Qwen3.5-9B"}, "Qwen/Qwen3-8B"),
        ("./models/Qwen3-32B", {"Qwen/Qwen3-14B"}, "Qwen/Qwen3-8B-Base"),
    ],
)
def test_a_smaller_model_is_of_the_same_family_and_kind(model: str, some: set[str], none: str) -> None:
    found = smaller_ids(model)
    assert some <= set(found) and none not in found
    assert all(known_config(one) for one in found)


@pytest.mark.parametrize("model", ["demo", "Qwen/QwQ-32B", "my-checkpoint", "some/Other-7B"])
def test_a_name_without_a_family_has_none(model: str) -> None:
    assert smaller_ids(model) == []
