"""Bundled models as the training tests name them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qserve.core.model_spec import ModelSpec
from qserve.hub.bundled import bundled_config


def load_spec(model_id: str) -> ModelSpec:
    config = bundled_config(model_id)
    assert config is not None
    return ModelSpec.from_config(config, model_id)


@pytest.fixture
def spec_of() -> Callable[[str], ModelSpec]:
    return load_spec
