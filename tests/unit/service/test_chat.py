"""The chat model of a service: what writes no text is refused wherever it is asked for, what is no chat is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config, known_ids
from qserve.hub.resolve import resolve
from qserve.service.chat import checked_chat
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine, hardware_of
from qserve.service.plan import plan_service, rank_cards
from qserve.service.request import ServiceRequest

HEADED = [one for one in known_ids() if "Reward" in one or "-PRM" in one or "-RM-" in one]
PLANNED = Machine(hardware_of("h100"))


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.parametrize("model", HEADED)
def test_a_plan_of_what_writes_no_text_names_the_command_for_reward_models(model: str) -> None:
    expected = (
        f"has no language-model head and writes no text; plan it as a reward model: qserve plan --reward {model}$"
    )
    with pytest.raises(UsageError, match=expected):
        plan_service(ServiceRequest(model), PLANNED, Knowledge())
    with pytest.raises(UsageError, match=expected):
        rank_cards(ServiceRequest(model), PLANNED, Knowledge())


def test_there_are_such_models() -> None:
    assert len(HEADED) >= 7


def test_a_folder_of_one_is_refused_too(tmp_path: Path) -> None:
    config = {**(bundled_config("Qwen/Qwen3-0.6B") or {}), "architectures": ["Qwen3ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_labels": 1}))
    (tmp_path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    with pytest.raises(UsageError, match="writes no text; plan it as a reward model"):
        checked_chat(ServiceRequest(str(tmp_path)), PLANNED)


@pytest.mark.parametrize(
    "model", [one for one in known_ids() if "Embedding" in one or "gte-" in one] + ["x/Qwen3-8B-embed"]
)
def test_an_embedding_model_is_told(model: str) -> None:
    told = checked_chat(ServiceRequest(model), PLANNED).messages
    assert any("is an embedding model" in one and f"--embed {model}" in one for one in told)


@pytest.mark.parametrize("model", ["Qwen/Qwen3-8B", "Qwen/Qwen3-Reranker-0.6B", "Qwen/Qwen3Guard-Gen-0.6B", "demo"])
def test_others_are_not(model: str) -> None:
    assert checked_chat(ServiceRequest(model), PLANNED).messages == resolve(model).messages
