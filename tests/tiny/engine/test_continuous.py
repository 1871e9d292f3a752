"""The contract with transformers' continuous batching: each private name that is used is there, release by release."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from qserve.engines.transformers.worker.batching.make import PAGED_FIELDS
from qserve.packages import REQUIREMENTS
from scripts.continuous_names import TABLE, USED, missing_in, of_installed

MISSING: dict[str, list[str]] = tomllib.loads(TABLE.read_text())["missing"]
ROOT = Path(__file__).parents[3]
ADAPTERS = [
    ROOT / "qserve" / "engines" / "transformers" / "worker" / "batching" / name
    for name in ("continuous.py", "layer_cache.py", "library_callbacks.py", "library_stages.py")
]
# Private names of qserve's own objects in these files, of Python and of accelerate.
OURS = {
    "_cache",
    "_count_shared",
    "_deliver",
    "_head",
    "_hf_hook",
    "_kv_token_views",
    "_margin",
    "_num_shared_tokens",
    "_processor",
    "_rows",
    "_sampler",
    "_sampling",
    "_starved",
    "_update",
}


def test_every_release_that_may_be_installed_is_in_the_table() -> None:
    allowed = SpecifierSet(REQUIREMENTS["transformers"].removeprefix("transformers"))
    assert all(release in allowed for release in MISSING)
    minors = {tuple(map(int, release.split(".")[:2])) for release in MISSING}
    first, last = min(minors), max(minors)
    assert minors == {(first[0], minor) for minor in range(first[1], last[1] + 1)}
    for outside in (f"{first[0]}.{first[1] - 1}.0", f"{last[0]}.{last[1] + 1}.0"):
        assert outside not in allowed, f"{outside}: scripts/continuous_names.py WHEEL adds it"


@pytest.mark.parametrize("release", MISSING)
def test_a_release_has_every_name_or_goes_to_the_row_batcher(release: str) -> None:
    """`make.PAGED_FIELDS` tells them apart: where something is missing, one of these is as well."""
    missing = MISSING[release]
    fields = {f"ContinuousBatchingConfig.{name}" for name in PAGED_FIELDS}
    assert not missing or fields & set(missing), missing


def test_the_installed_release_is_as_the_table_says() -> None:
    missing = missing_in(of_installed())
    assert missing == MISSING.get(version("transformers"), []), "scripts/continuous_names.py writes it anew"


def test_no_private_name_is_used_that_the_contract_does_not_hold() -> None:
    held = {name for names in USED.values() for name in names}
    for file in ADAPTERS:
        used = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        private = {name for name in used if re.match(r"_(?!_)", name)}
        assert private <= held | OURS, file.name


def test_the_library_is_patched_in_its_adapters_alone() -> None:
    """Nowhere else in the batchers stands a private name of the library's."""
    held = {name for names in USED.values() for name in names if name.startswith("_")}
    for file in ADAPTERS[0].parent.glob("*.py"):
        used = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        assert file in ADAPTERS or not used & held, file.name
