"""`--embed` as part of a service: what it asks for, where it goes, and which flags it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.errors import UsageError
from qserve.service.chat import checked_chat
from qserve.service.knowledge import Knowledge
from qserve.service.machine import Machine
from qserve.service.plan import ServicePlan, plan_service
from qserve.service.request import ServiceRequest, misplaced_options
from qserve.units import GIB
from tests.unit.reward.test_vectors import embedder

ID = "Qwen/Qwen3-Embedding-0.6B"


def planned(gpu: str, **flags: Any) -> ServicePlan:
    hardware = Hardware(tuple(parse_gpu(gpu)), 64 * GIB, 60 * GIB, 16)
    return plan_service(ServiceRequest.from_flags(flags), Machine(hardware), Knowledge(learns=False))


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def test_a_chat_and_an_embedding_model_share_a_card() -> None:
    service = planned("rtx-4090", model="Qwen/Qwen3-8B", quant="4bit", embed=ID)
    assert service.fits and service.role == "embed"
    assert service.where == "chat and embedding share NVIDIA GeForce RTX 4090"
    document = service.to_json()
    assert document["embed"]["model"]["id"] == ID and "reward" not in document


def test_alone_it_takes_a_length_and_a_type() -> None:
    service = planned("rtx-4090", embed=ID, max_length=4096, dtype="float32", embed_quant="auto")
    (model,) = service.models
    assert (model.whole.workload.max_model_len, model.whole.dtype) == (4096, "float32")


def test_a_folder_s_own_length_bounds_the_plan(tmp_path: Path) -> None:
    files = {"sentence_bert_config.json": {"max_seq_length": 256}}
    service = planned("rtx-4090", embed=str(embedder(tmp_path / "model", files=files)))
    assert service.models[0].whole.workload.max_model_len == 256


def test_beside_a_reward_model_it_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--embed me/e and --reward me/r: .*under models:.*--config"):
        ServiceRequest.from_flags({"embed": "me/e", "reward": "me/r"})


def test_flags_of_others_are_misplaced() -> None:
    names = {name for group, _ in misplaced_options(None, None, None, ID) for name in group}
    assert {"reward_quant", "template", "judge", "quant", "users", "max_model_len"} <= names
    assert not names & {"embed_quant", "max_length", "truncate", "pooling", "dtype", "cpu_activations"}
    with_chat = {name for group, _ in misplaced_options("demo", None, None, ID) for name in group}
    assert "users" in with_chat and "quant" not in with_chat
    alone = {name for group, _ in misplaced_options("demo", None, None, None) for name in group}
    assert "embed_quant" in alone


def test_the_folder_of_an_embedding_model_is_not_served_as_a_chat_model(tmp_path: Path) -> None:
    path = embedder(tmp_path / "model")
    serving = Machine(Hardware((), 8 * GIB, 8 * GIB, 2), serves=True)
    with pytest.raises(UsageError, match=rf"/v1/embeddings: qserve up --embed {path}"):
        checked_chat(ServiceRequest(str(path)), serving)
    pooled = ServiceRequest(str(path), engine_args="--runner pooling")
    assert any("is an embedding model" in one for one in checked_chat(pooled, serving).messages)
