"""A reward model of the hub is recognised by its headers, before its weights are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from qserve.core.hardware import Hardware
from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.planner import PlanRequest
from qserve.reward.find import find_reward, plan_reward
from qserve.reward.settings import RewardSettings
from qserve.service.machine import hardware_of
from tests.tiny.hub.loopback import COMMIT, OLDER, Hub, loopback_hub
from tests.unit.reward.stored import HIDDEN, body, write_adapter, write_folder

HEAD = {"base_model.model.score.weight": (1, HIDDEN)}
LONG = {f"model.long_{'n' * 50}_{number}": (64, 64) for number in range(1000)}
"""Of more than a megabyte, as shards have them; the tensors are no part of the body."""


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    whole = write_folder(tmp_path / "whole", {**body(), "score.weight": (1, HIDDEN), **LONG})
    with loopback_hub(files_in(whole)) as one:
        monkeypatch.setenv("HF_ENDPOINT", one.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield one


@pytest.mark.parametrize(("named", "commit"), [("me/rm", COMMIT), ("me/rm@v1", OLDER)])
def test_its_headers_are_enough_for_a_plan(hub: Hub, tmp_path: Path, named: str, commit: str) -> None:
    found = find_reward(named, RewardSettings(), asks_hub=True)
    here = find_reward(str(tmp_path / "whole"), RewardSettings())
    assert (found.id, found.format, found.to_fetch) == ("me/rm", "sequence-classification", (named,))
    assert [(one.name, one.shape) for one in found.body] == [(one.name, one.shape) for one in here.body]
    planned = found.planned()
    assert (planned.revision, planned.folder) == (commit, found.path)
    plans = [plan_reward(one, cpu(), PlanRequest()).devices[0].weights_bytes for one in (found, here)]
    assert plans[0] == plans[1]
    assert hub.sent["model.safetensors"] < len(hub.files["model.safetensors"]) / 2, "headers alone"
    assert not (tmp_path / "cache").exists()

    asked = hub.asked.total()
    find_reward(named, RewardSettings(), asks_hub=True)
    assert hub.asked.total() == asked, "the same commit is read once"


def cpu() -> Hardware:
    return hardware_of("none")


def test_an_adapter_is_found_with_its_base(hub: Hub, tmp_path: Path) -> None:
    hub.others["me/adapter"] = files_in(write_adapter(tmp_path / "adapter", "me/base@v1", HEAD))
    hub.others["me/base"] = files_in(write_folder(tmp_path / "base", body()))
    found = find_reward("me/adapter", RewardSettings(), asks_hub=True)
    assert (found.format, found.to_fetch) == ("lora", ("me/adapter", "me/base@v1"))
    assert len(found.body) == len(body())

    hub.others["me/other"] = files_in(write_adapter(tmp_path / "other", "/trainer/base", HEAD))
    with pytest.raises(ModelNotFound, match="it was trained on '/trainer/base'"):
        find_reward("me/other", RewardSettings(), asks_hub=True)
    assert find_reward("me/other", RewardSettings(base="me/base"), asks_hub=True).to_fetch == ("me/other", "me/base")


def test_what_headers_do_not_tell_is_said(hub: Hub, tmp_path: Path) -> None:
    hub.others["me/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"x"}
    with pytest.raises(BrokenCheckpoint, match="qserve pull me/pickled --no-plan"):
        find_reward("me/pickled", RewardSettings(), asks_hub=True)
    hub.others["me/chat"] = files_in(write_folder(tmp_path / "chat", body()))
    with pytest.raises(BrokenCheckpoint, match="me/chat has no"):
        find_reward("me/chat", RewardSettings(), asks_hub=True)
    hub.others["me/outside"] = {"../outside": b"x"}
    with pytest.raises(BrokenCheckpoint, match="is no file of it"):
        find_reward("me/outside", RewardSettings(), asks_hub=True)
    with pytest.raises(ModelNotFound, match="accept them on"):
        find_reward("me/gated", RewardSettings(), asks_hub=True)
    with pytest.raises(ModelNotFound, match="no revision 'v9'"):
        find_reward("me/rm@v9", RewardSettings(), asks_hub=True)


def test_nobody_is_asked_where_it_is_not_wanted(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelNotFound, match="qserve pull"):
        find_reward("me/rm", RewardSettings())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        find_reward("me/rm", RewardSettings(), asks_hub=True)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="could not be asked"):
        find_reward("me/rm", RewardSettings(), asks_hub=True)
    assert not hub.asked
