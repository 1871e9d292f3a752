"""Which distribution a package came from, found without parsing: as importlib.metadata finds it."""

from __future__ import annotations

import gc
import importlib.metadata
import sys
from pathlib import Path

import pytest

from qserve.worker.quick_imports import packages_distributions, quick_imports


def distribution(
    folder: Path, stem: str, name: str, *, top_level: str = "", record: str = "", suffix: str = ".dist-info"
) -> None:
    made = folder / f"{stem}-1.0{suffix}"
    made.mkdir()
    metadata = "METADATA" if suffix == ".dist-info" else "PKG-INFO"
    (made / metadata).write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n\nName: of the text\n")
    for file, text in (("top_level.txt", top_level), ("RECORD", record)):
        if text:
            (made / file).write_text(text)


def test_it_is_what_the_standard_library_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    distribution(first, "pillow", "pillow", top_level="PIL\n")
    distribution(first, "flash_attn", "flash-attn", top_level="flash_attn\nflash_attn_2_cuda\n")
    record = "one/__init__.py,sha256=a,1\none/deep/er.py,,\ntwo.py,,\none-1.0.dist-info/METADATA,,\nbin/tool,,\n"
    distribution(first, "One.Name", "One.Name", record=record)
    distribution(second, "other", "other", record="one/more.py,,\n", top_level="")
    distribution(second, "nothing", "nothing")
    distribution(second, "old", "old", top_level="old\n", suffix=".egg-info")
    (second / "broken-1.0.dist-info").mkdir()
    (second / "a_file.dist-info").write_text("")
    monkeypatch.setattr(sys, "path", [str(first), str(tmp_path / "missing"), str(second)])
    found = packages_distributions()
    assert found["one"] == ["One.Name", "other"] and found["PIL"] == ["pillow"] and found["old"] == ["old"]
    expected = importlib.metadata.packages_distributions()
    assert {key: sorted(names) for key, names in found.items()} == {
        key: sorted(names) for key, names in expected.items() if None not in names
    }


def test_the_standard_librarys_own_is_back_afterwards() -> None:
    original, was_enabled = importlib.metadata.packages_distributions, gc.isenabled()
    with pytest.raises(ModuleNotFoundError), quick_imports():
        assert importlib.metadata.packages_distributions is packages_distributions and not gc.isenabled()
        raise ModuleNotFoundError
    assert importlib.metadata.packages_distributions is original and gc.isenabled() == was_enabled
