"""A new checkpoint's folder: whole or not there, and refused before the work where it has no room."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.derive.card import ModelCard
from qserve.derive.output import carry, check_disk, check_memory, check_new, made_whole
from qserve.errors import DoesNotFit, UsageError


def test_it_is_there_whole(tmp_path: Path) -> None:
    out = tmp_path / "new" / "model"
    with made_whole(out) as folder:
        (folder / "config.json").write_text("{}")
        assert not out.exists()
    assert [one.name for one in out.iterdir()] == ["config.json"]
    assert [one.name for one in out.parent.iterdir()] == ["model"]


def test_what_ends_it_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), made_whole(tmp_path / "model") as folder:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    check_new(tmp_path / "empty")
    check_new(tmp_path / "none")
    with pytest.raises(UsageError, match="exists already"):
        check_new(tmp_path)


def test_what_has_no_room_is_refused(tmp_path: Path) -> None:
    check_disk(tmp_path / "new" / "model", 1, "it")
    with pytest.raises(UsageError, match=r"it takes [\d,.]+ .iB on disk"):
        check_disk(tmp_path / "model", 1 << 60, "it")
    check_memory(1, "it", "wait")
    with pytest.raises(DoesNotFit, match=r"of RAM, and .* are free; wait"):
        check_memory(1 << 60, "it", "wait")


def test_what_lies_beside_the_weights_comes_along(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    for folder in (source, source / "chat_templates", out):
        folder.mkdir()
    kept = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "LICENSE")
    for name in (*kept, "config.json", "model.safetensors", "README.md", "training_args.bin"):
        (source / name).write_text(name)
    carry(source, out)
    assert {one.name for one in out.iterdir()} == {*kept, "chat_templates"}


def test_a_card_names_its_base_for_the_hub() -> None:
    card = ModelCard("merged", "org/base", "finetune", "Made.", {"How": {"a|b": "c\nd"}}, ("reward-model",))
    head = "base_model: org/base\nbase_model_relation: finetune\nlibrary_name: transformers\n"
    assert card.text().startswith(f"---\n{head}tags:\n- qserve\n- reward-model\n---\n")
    assert "| a\\|b | c d |" in card.text()
    assert "base_model" not in ModelCard("merged", None, "finetune", "Made.").text()
