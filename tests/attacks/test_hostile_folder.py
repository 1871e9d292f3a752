"""A checkpoint folder that a stranger wrote: one sentence, in seconds and megabytes, by plan and up alike."""

from __future__ import annotations

import json
import os
import socket
import struct

import pytest

from qserve.errors import BrokenCheckpoint
from qserve.hub.bounded import parse_header, parse_json, shard_names
from tests.forked import commands

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
LIMIT_S = 60  # of a start of Python on a busy machine; what hangs or counts for ever is far above
LIMIT_BYTES = 1 << 30


def write(folder, **changes):
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    return folder


def tensors(folder, header, name="model.safetensors"):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (folder / name).write_bytes(struct.pack("<Q", len(text)) + text)


def many_layers(folder):
    write(folder, num_hidden_layers=100_000)


def a_billion_layers(folder):
    write(folder, num_hidden_layers=10**9)


def million_tensors(folder):
    write(folder)
    entry = '"t%d":{"dtype":"BF16","shape":[0],"data_offsets":[0,0]}'
    tensors(folder, ("{" + ",".join(entry % i for i in range(1_000_000)) + "}").encode())


def pipe(folder):
    os.mkfifo(write(folder) / "model.safetensors")


def pipe_as_tokenizer(folder):
    os.mkfifo(write(folder) / "tokenizer.json")


def unix_socket(folder):
    opened = os.open(write(folder), os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{opened}/model.safetensors")  # 107 bytes at most, wherever the folder is
    os.close(opened)


def endless_device(folder):
    (write(folder) / "model.safetensors").symlink_to("/dev/zero")


def nested_config(folder):
    (folder / "config.json").write_text('{"a":' * 200_000 + "1" + "}" * 200_000)


def rather_nested_config(folder):
    (folder / "config.json").write_text('{"a":' * 500 + "1" + "}" * 500)


def nested_header(folder):
    write(folder)
    tensors(folder, b"[" * 2_000_000)


def index_elsewhere(folder):
    weight_map = {"model.embed_tokens.weight": "../../../etc/passwd"}
    (write(folder) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def index_of_numbers(folder):
    (write(folder) / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": 1}}))


def shape_of_text(folder):
    write(folder)
    tensors(folder, {"model.embed_tokens.weight": {"dtype": "BF16", "shape": ["8", "8"], "data_offsets": [0, 0]}})


def backward_offsets(folder):
    write(folder)
    tensors(folder, {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [16, 0]}})


def huge_config(folder):
    with (folder / "config.json").open("wb") as file:
        file.truncate(3 << 30)


FOLDERS = {
    many_layers: "num_hidden_layers is 100000, but must be a whole number from 1 to 1000",
    a_billion_layers: "num_hidden_layers is 1000000000, but must be a whole number from 1 to 1000",
    million_tensors: "lists 1000000 tensors or more, and at most 400000 are read",
    pipe: "model.safetensors is a named pipe, and a checkpoint has regular files only",
    pipe_as_tokenizer: "tokenizer.json is a named pipe",
    unix_socket: "model.safetensors is a socket",
    endless_device: "model.safetensors is a device",
    nested_config: "is nested deeper than 64 levels",
    rather_nested_config: "is nested deeper than 64 levels",
    nested_header: "is not a safetensors header",
    index_elsewhere: "names the file '../../../etc/passwd', which is not in its folder",
    index_of_numbers: "names the file '1', which is not in its folder",
    shape_of_text: "model.embed_tokens.weight has the shape ('8', '8')",
    backward_offsets: "model.embed_tokens.weight has the shape (8,) at bytes 16 to 0",
    huge_config: "is larger than 64 MiB",
}


@pytest.fixture(scope="module")
def called(tmp_path_factory):
    with commands(tmp_path_factory.mktemp("called"), LIMIT_S, LIMIT_BYTES) as call:
        yield call


@pytest.mark.parametrize("make", FOLDERS, ids=lambda make: make.__name__)
def test_plan_refuses_it_in_one_sentence(make, tmp_path, called):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    make(folder)
    status, said = called("plan", "--model", str(folder), "--gpu", "rtx-4090")
    assert FOLDERS[make] in " ".join(said.split())
    assert "Traceback" not in said
    assert status == 2


@pytest.mark.parametrize(
    "command", [("up",), ("up", "--model", "demo", "--reward"), ("plan", "--model", "demo", "--reward")]
)
@pytest.mark.parametrize("make", [pipe, index_elsewhere, nested_config], ids=lambda make: make.__name__)
def test_up_and_rewards_have_the_same_bounds(make, command, tmp_path, called):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    make(folder)
    last = command if command[-1] == "--reward" else (*command, "--model")
    status, said = called(*last, str(folder))
    told = " ".join(said.split())
    assert FOLDERS[make] in told or "has no weights (*.safetensors" in told  # of files with a pipe among them
    assert "Traceback" not in said
    assert status == 2


def test_links_of_the_hub_cache_are_followed(tmp_path):
    """Its snapshots are links to ../../blobs; what an index names is still a plain name."""
    (tmp_path / "blob").write_text("{}")
    (tmp_path / "config.json").symlink_to(tmp_path / "blob")
    assert shard_names({"weight_map": {"a": "model-1.safetensors", "b": "sub/model-2.safetensors"}}, "index") == [
        "model-1.safetensors",
        "sub/model-2.safetensors",
    ]


@pytest.mark.parametrize("name", ["/etc/passwd", "a/../../b", "", "a\0b", "..", None, 3, "..\\b"])
def test_no_name_leads_out_of_the_folder(name):
    with pytest.raises(BrokenCheckpoint, match="which is not in its folder"):
        shard_names({"weight_map": {"a": name}}, "index")


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[1]", b"1e999", b"", b'{"a":' + b"9" * 10_000 + b"}"])
def test_what_is_no_object_is_said(text):
    with pytest.raises(BrokenCheckpoint):
        parse_json(text, "config.json")


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "BF16", "shape": [True], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [-1], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [1] * 9, "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": [1], "data_offsets": [0.5, 2]},
        {"dtype": "BF16", "shape": [1], "data_offsets": [0, 1 << 64]},
        {"dtype": ["BF16"], "shape": [1], "data_offsets": [0, 2]},
        {"dtype": "BF16", "shape": "11", "data_offsets": [0, 2]},
    ],
)
def test_an_entry_holds_numbers(entry):
    with pytest.raises(BrokenCheckpoint, match="is not a safetensors header"):
        parse_header(json.dumps({"a": entry}).encode(), "model.safetensors")
