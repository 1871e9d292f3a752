"""Paths of this machine: where a container sees them, and what it can't."""

from __future__ import annotations

import pytest
import yaml

from qserve.cli.main import cli
from qserve.demo import chat_model_path
from qserve.deploy.service import Mount
from qserve.deploy.words import mounted
from qserve.errors import UsageError


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "my-model"
    place.mkdir()
    (place / "config.json").write_text("{}")
    return place


def test_a_folder_is_mounted_and_a_hub_id_is_not(folder):
    values, mounts = mounted({"model": str(folder), "reward": "Qwen/Qwen3-0.6B", "quant": "fp8"}, absolute=False)
    assert values == {"model": "/models/my-model", "reward": "Qwen/Qwen3-0.6B", "quant": "fp8"}
    assert mounts == (Mount(str(folder), "/models/my-model"),)


def test_on_this_machine_a_path_only_becomes_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert mounted({"model": "my-model"}, absolute=True) == ({"model": str(folder)}, ())


def test_a_recipe_comes_with_its_folder(folder):
    (folder / "rewards.yaml").write_text("")
    values, mounts = mounted({"reward": str(folder / "rewards.yaml")}, absolute=False)
    assert values == {"reward": "/models/my-model/rewards.yaml"}
    assert mounts == (Mount(str(folder), "/models/my-model"),)


def test_links_that_leave_the_folder_are_refused(folder, tmp_path):
    (tmp_path / "blob").write_text("")
    (folder / "model.safetensors").symlink_to(tmp_path / "blob")
    with pytest.raises(UsageError, match="cp --recursive --dereference"):
        mounted({"model": str(folder)}, absolute=False)
    assert mounted({"model": str(folder)}, absolute=True)[0] == {"model": str(folder)}


def test_two_folders_of_one_name_are_refused(folder, tmp_path):
    other = tmp_path / "other" / "my-model"
    other.mkdir(parents=True)
    with pytest.raises(UsageError, match="rename one"):
        mounted({"model": str(folder), "reward": str(other)}, absolute=False)


def test_a_pod_reads_checkpoints_from_a_claim(capsys):
    call = ["deploy", "k8s", "--model", str(chat_model_path()), "--gpu", "none"]
    with pytest.raises(UsageError, match="--models-claim"):
        cli.main(call, standalone_mode=False)
    capsys.readouterr()
    cli.main([*call, "--models-claim", "checkpoints"], standalone_mode=False)
    objects = {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}
    pod = objects["StatefulSet"]["spec"]["template"]["spec"]
    assert f"--model=/models/{chat_model_path().name}" in pod["containers"][0]["args"]
    assert {"claimName": "checkpoints", "readOnly": True} in [
        volume.get("persistentVolumeClaim") for volume in pod["volumes"]
    ]
