"""No other trainer is told an id with a revision: of the model and of the rewards alike."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.main import cli
from qserve.hub import resolve

COMMIT = "a" * 40
CONFIG = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
HEADER = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [32, 8], "data_offsets": [0, 512]}})


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """me/rm at v1, in a cache of the hub."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repo = tmp_path / "hub" / "models--me--rm"
    made = repo / "snapshots" / COMMIT
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(CONFIG))
    (made / "model.safetensors").write_bytes(struct.pack("<Q", len(HEADER)) + HEADER.encode() + bytes(512))
    (repo / "refs").mkdir()
    (repo / "refs" / "v1").write_text(COMMIT)
    return made


def emitted(tmp_path: Path, framework: str, *rewards: str) -> tuple[int, str]:
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"prompt": "Count to ten."}) + "\n")
    words = ["train", "grpo", "Qwen/Qwen3-0.6B", "--gpu", "h100", "--data", str(data), "--emit", framework]
    done = CliRunner().invoke(cli, [*words, *(word for one in rewards for word in ("--reward", one))])
    return done.exit_code, f"{done.output}{done.exception or ''}"


@pytest.mark.parametrize("framework", ["ms-swift", "openrlhf", "verl"])
def test_a_reward_at_a_revision_is_named_by_its_folder(tmp_path: Path, folder: Path, framework: str) -> None:
    status, text = emitted(tmp_path, framework, "me/rm@v1")
    assert status == 0, text
    assert str(folder) in text and "@v1" not in text


def test_weights_stay_with_their_rewards(tmp_path: Path, folder: Path) -> None:
    status, text = emitted(tmp_path, "ms-swift", "0.25=me/rm@v1", "me/other", f"2={folder}")
    assert status == 0, text
    assert text.count(str(folder)) == 2 and "me/other" in text and "0.25 1 2" in " ".join(text.split())


@pytest.mark.parametrize("framework", ["ms-swift", "openrlhf", "verl"])
@pytest.mark.parametrize("reward", ["me/rm@v2", "Qwen/Qwen3-0.6B@v1"])
def test_a_reward_that_is_not_here_at_its_revision_is_refused(tmp_path: Path, framework: str, reward: str) -> None:
    status, text = emitted(tmp_path, framework, reward)
    assert status != 0
    assert f"{reward.partition('@')[2]!r} is not in the local cache" in text


@pytest.mark.parametrize("framework", ["ms-swift", "verl", "openrlhf"])
def test_no_revision_of_the_hub_s_without_a_folder_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, framework: str
) -> None:
    """One that the hub knows and this machine has no folder of."""
    found = resolve("Qwen/Qwen3-0.6B")
    monkeypatch.setattr("qserve.cli.train.planned.resolve", lambda model: replace(found, folder=None))
    status, text = emitted(tmp_path, framework, "me/rm@v1")
    assert status
    assert f"--emit {framework}: me/rm@v1 is not on this machine" in text
    assert "leave the revision of --reward me/rm@v1 out" in text


def test_an_address_is_no_revision(tmp_path: Path) -> None:
    status, text = emitted(tmp_path, "openrlhf", "http://user:secret@host:8000")
    assert status == 0, text


def test_trl_s_rewards_are_read_by_qserve(tmp_path: Path) -> None:
    status, text = emitted(tmp_path, "trl", "me/rm@v1")
    assert status == 0, text
