"""A module is changed by the import that makes it, once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from qserve.engines.vllm.launch.plugins.on_import import when_imported


def change(module: Any) -> None:
    module.LIST.append(2)
    module.ADDED = 3


def test_it_is_changed_before_anyone_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "changed_here.py").write_text("LIST = [1]\n")
    (tmp_path / "takes_it.py").write_text("from changed_here import LIST, ADDED\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    when_imported("changed_here", change)
    import takes_it  # type: ignore[import-not-found]

    assert (takes_it.LIST, takes_it.ADDED) == ([1, 2], 3)
    assert sys.meta_path == finders
    for name in ("takes_it", "changed_here"):
        monkeypatch.delitem(sys.modules, name)


def test_a_module_that_is_not_there_is_still_missing() -> None:
    finders = list(sys.meta_path)
    when_imported("nowhere_to_be_found", lambda _: None)
    with pytest.raises(ModuleNotFoundError):
        import nowhere_to_be_found  # type: ignore[import-not-found]  # noqa: F401
    assert sys.meta_path == finders
