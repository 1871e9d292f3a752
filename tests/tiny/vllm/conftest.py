"""The flags of the installed engine, asked for once."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from qserve.engine.vllm.parser import FlagParser, installed_parser

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]


@pytest.fixture(scope="session")
def parser() -> FlagParser:
    return installed_parser()
