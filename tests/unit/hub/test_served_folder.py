"""A folder with other keys in its config.json, as an engine without overrides of its own reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qserve.hub.served_folder import clean_folder

ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "rope_theta": 1e6}
KEYS = {"rope_parameters": ROPE, "max_position_embeddings": 1024}
OLD = {"max_position_embeddings": 256, "rope_scaling": {"type": "linear", "factor": 2.0}, "vocab_size": 7}


@pytest.mark.parametrize("nested", [(), ("text_config",), ("thinker_config", "text_config")])
def test_keys_take_the_place_of_the_language_models_own(
    nested: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")

    def inside(value: dict[str, Any]) -> dict[str, Any]:
        for name in reversed(nested):
            value = {name: value, **({"vision_config": {"depth": 2}} if name == nested[0] else {})}
        return value

    (folder / "config.json").write_text(json.dumps(inside(OLD)))
    given: dict[str, Any] = KEYS
    for name in reversed(nested):
        given = {name: given}
    seen = clean_folder(folder, given)
    assert json.loads((seen / "config.json").read_text()) == inside({**KEYS, "vocab_size": 7})
    assert (seen / "tokenizer.json").resolve() == folder / "tokenizer.json"
    assert json.loads((folder / "config.json").read_text()) == inside(OLD)
    assert clean_folder(folder, given) == seen
    assert clean_folder(folder) == folder
