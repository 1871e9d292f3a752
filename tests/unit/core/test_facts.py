"""Tables: ours, and a user's rows in place of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.core import facts
from qserve.errors import UsageError


def test_every_table_of_configs_loads() -> None:
    for table in ("models", "siblings", "gpus"):
        assert facts.load(table)


def test_a_users_row_takes_the_place_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "siblings.toml").write_text('["Qwen/Qwen3-32B"]\nawq = "me/my-awq"\n')
    monkeypatch.setenv("QSERVE_CONFIGS", str(tmp_path))
    siblings = facts.load("siblings")
    assert siblings["Qwen/Qwen3-32B"] == {"fp8": "Qwen/Qwen3-32B-FP8", "awq": "me/my-awq"}
    assert siblings["Qwen/Qwen3-8B"]["awq"] == "Qwen/Qwen3-8B-AWQ"


def test_a_broken_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models.toml").write_text("[[")
    monkeypatch.setenv("QSERVE_CONFIGS", str(tmp_path))
    with pytest.raises(UsageError, match=r"models\.toml is not valid TOML"):
        facts.load("models")


def test_a_table_that_nobody_packed_is_a_packaging_mistake() -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.toml"):
        facts.load("nothing")
