"""Flags that hold a key do not show it where they are printed whole, as in a traceback."""

from __future__ import annotations

from dataclasses import fields

import pytest

from qserve.cli.bench.request import BenchFlags
from qserve.cli.deploy import _DeployFlags
from qserve.cli.eval.request import EvalFlags
from qserve.cli.up.settings import ServerFlags


@pytest.mark.parametrize("holder", [BenchFlags, EvalFlags, ServerFlags, _DeployFlags])
def test_a_key_is_not_shown(holder: type) -> None:
    values = {one.name: "sk-secret" if one.name == "api_key" else None for one in fields(holder)}
    assert holder(**values).api_key == "sk-secret"
    assert "sk-secret" not in repr(holder(**values))
