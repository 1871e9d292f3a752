"""The flags of the tested release."""

from __future__ import annotations

import pytest

from tests.unit.engines.vllm.builders import parser_for


@pytest.fixture
def parser():
    return parser_for("0.32.0")
