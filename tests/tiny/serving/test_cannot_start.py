"""Every way in which `qserve up` can't start: its exit status, and one message that says what to change.

What a worker finds wrong with tensors: tests/tiny/engine/test_load.py.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.forked import commands
from tests.tiny.serving.served import START_LIMIT_S, run


@pytest.fixture
def checkpoint(demo: Path, tmp_path: Path) -> Path:
    """A copy of the demo, to be broken."""
    return Path(shutil.copytree(demo, tmp_path / "checkpoint"))


Refused = Callable[..., str]


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refused]:
    """`refused(2, "--model", …)`: the one message of a `qserve up` that ends with 2 before it starts a worker."""
    with commands(tmp_path_factory.mktemp("called"), START_LIMIT_S, HF_HUB_OFFLINE="1") as called:
        yield lambda status, *arguments: message_of(status, *called("up", "--port", "0", *arguments))


def refused_by_worker(status: int, *arguments: str, folder: Path, **environment: str) -> str:
    """The same of one that comes as far as its worker, in a process of its own, of which nothing is left."""
    return message_of(status, *run(*arguments, folder=folder, **environment))


def message_of(status: int, got: int, output: str) -> str:
    assert got == status, output
    assert "Traceback" not in output
    messages = [line for line in output.splitlines() if line.startswith("qserve: ")]
    assert len(messages) == 1, output
    return messages[0]


def test_a_port_in_use(refused: Refused) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        message = refused(4, "--model", "demo", "--port", port)
    assert port in message
    assert "--port 0" in message


def test_another_host_without_a_key(refused: Refused) -> None:
    message = refused(2, "--model", "demo", "--host", "0.0.0.0")
    assert "--api-key" in message
    assert "0.0.0.0" in message


def test_a_host_that_is_none(refused: Refused) -> None:
    assert "--host" in refused(2, "--model", "demo", "--host", "no.such.host.invalid", "--api-key", "k")


def test_a_missing_folder(refused: Refused) -> None:
    assert "/no/such/folder" in refused(2, "--model", "/no/such/folder")


def test_an_unknown_id_without_a_network(refused: Refused) -> None:
    message = refused(2, "--model", "nobody/nothing-7B")
    assert "nobody/nothing-7B" in message
    assert "HF_HUB_OFFLINE" in message


def test_a_known_id_whose_weights_are_not_here(tmp_path: Path) -> None:
    """It can be planned from its bundled dimensions, so that it fails where the weights would be fetched."""
    message = refused_by_worker(
        2, "--model", "Qwen/Qwen3-0.6B", "--gpu", "none", folder=tmp_path, HF_HOME=str(tmp_path / "hf")
    )
    assert "Qwen/Qwen3-0.6B" in message


def test_a_folder_without_config(checkpoint: Path, refused: Refused) -> None:
    (checkpoint / "config.json").unlink()
    assert "config.json" in refused(2, "--model", str(checkpoint))


def test_a_config_that_is_no_json(checkpoint: Path, refused: Refused) -> None:
    (checkpoint / "config.json").write_text('{"model_type": ')
    assert "config.json" in refused(2, "--model", str(checkpoint))


def test_a_truncated_file(checkpoint: Path, refused: Refused) -> None:
    file = checkpoint / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    assert "truncated" in refused(2, "--model", str(checkpoint))


def test_a_missing_shard(checkpoint: Path, refused: Refused) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-00002-of-00002.safetensors")}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "model-00002-of-00002" in refused(2, "--model", str(checkpoint))


def test_a_model_that_does_not_fit(refused: Refused) -> None:
    message = refused(3, "--model", "Qwen/Qwen2.5-72B-Instruct", "--gpu", "none")
    assert "GiB" in message


def test_a_state_folder_that_cannot_be_written(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    message = refused(2, "--model", "demo", "--state-dir", str(file / "state"))
    assert "--state-dir" in message


def test_weights_that_are_no_numbers(checkpoint: Path, tmp_path: Path) -> None:
    """It fails in the warm-up, when the generating thread runs already: the worker must end all the same."""
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], float("nan"))
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    message = refused_by_worker(2, "--model", str(checkpoint), folder=tmp_path)
    assert "not a number" in message
    assert "--dtype float32" in message


def test_random_weights_serve_noise(checkpoint: Path, tmp_path: Path) -> None:
    """They load and answer as trained ones do: their loss tells, a failure with --strict."""
    weights = checkpoint / "model.safetensors"
    torch.manual_seed(0)
    save_file({name: 0.02 * torch.randn_like(one) for name, one in load_file(weights).items()}, weights)
    message = refused_by_worker(5, "--model", str(checkpoint), "--strict", folder=tmp_path)
    assert "self-test failed: the model answers noise" in message and "7.15 if it guessed" in message
