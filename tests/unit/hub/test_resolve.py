"""Names that are no folders: aliases, the local cache, bundled dimensions, the hub by range requests."""

from __future__ import annotations

import json
import re
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from qserve.core import facts
from qserve.errors import ModelNotFound
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config, known_ids, sibling_ids
from qserve.hub.names import matching_ids

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
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
FILE = struct.pack("<Q", len(HEADER)) + HEADER.encode() + bytes(512)


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_alias_says_what_it_was_taken_for() -> None:
    checkpoint = resolve("Qwen/Qwen32B")
    assert checkpoint.id == "Qwen/Qwen3-32B"
    assert "Qwen/Qwen3.8-27B" in checkpoint.messages[0]


def test_known_id_is_planned_from_dimensions_and_says_so() -> None:
    checkpoint = resolve("Qwen/Qwen3-8B")
    assert (checkpoint.folder, checkpoint.tensors) == (None, None)
    assert checkpoint.parameters == 8_190_735_360
    assert "bundled dimensions" in checkpoint.messages[0]


def test_unknown_id_offline_names_its_neighbours() -> None:
    with pytest.raises(ModelNotFound, match=r"HF_HUB_OFFLINE=1 forbids.*did you mean .*Qwen/Qwen3-"):
        resolve("Qwen/Qwen3-33B")


def test_the_local_cache_comes_first(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--me--mine"
    folder = repo / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("abc")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(FILE)
    assert resolve("me/mine").folder == folder


def test_a_cache_with_config_alone_counts_dimensions(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--me--half" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    checkpoint = resolve("me/half")
    assert checkpoint.tensors is None
    assert "incomplete" in checkpoint.messages[0]


def test_every_sibling_of_a_known_scheme_resolves_to_its_base() -> None:
    for base, siblings in facts.load("siblings").items():
        for scheme, sibling in siblings.items():
            config = bundled_config(sibling)
            assert bundled_config(base), base
            assert scheme == "nvfp4" or (config and "quantization_config" in config), sibling


class _Hub(BaseHTTPRequestHandler):
    """What the hub does with range requests, on loopback."""

    files: ClassVar[dict[str, bytes]] = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": FILE}

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[-1]
        if "nobody" in self.path or name not in self.files:
            self.send_error(404)
            return
        body = self.files[name]
        if "Range" in self.headers:
            body = body[: int(self.headers["Range"].split("-")[1]) + 1]

        self.send_response(206 if "Range" in self.headers else 200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.usefixtures("hub")
def test_headers_come_from_the_hub_by_range() -> None:
    checkpoint = resolve("me/remote")
    assert checkpoint.folder is None
    assert checkpoint.tensors is not None
    assert [tensor.nbytes for tensor in checkpoint.tensors] == [512]


@pytest.mark.usefixtures("hub")
def test_a_repository_without_safetensors_counts_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Hub, "files", {"config.json": json.dumps(CONFIG).encode()})
    assert resolve("me/bin-only").tensors is None


@pytest.mark.usefixtures("hub")
def test_the_hubs_no_is_passed_on() -> None:
    with pytest.raises(ModelNotFound, match="HTTP 404"):
        resolve("me/nobody")


def test_an_unreachable_hub_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="the hub could not be asked"):
        resolve("me/remote")


@pytest.mark.parametrize("model_id", [*known_ids(), *sibling_ids()])
def test_every_known_model_has_a_short_name(model_id: str) -> None:
    """Of all of them, not of a chosen few: each in small letters, without its organisation, and in Ollama's form."""
    name = model_id.partition("/")[2].lower()
    family, _, size = name.partition("-")
    assert matching_ids(name, (*known_ids(), *sibling_ids())) == (model_id,)
    assert model_id in matching_ids(f"{family}:{size}", (*known_ids(), *sibling_ids()))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("Qwen3-32B-AWQ", "Qwen/Qwen3-32B-AWQ"),
        ("qwen3:32b", "Qwen/Qwen3-32B"),
        ("qwen/qwen3-32b", "Qwen/Qwen3-32B"),
        ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B"),
        ("qwen32b", "Qwen/Qwen3-32B"),
    ],
)
def test_a_short_name_is_taken_for_the_model_and_says_so(name: str, meant: str) -> None:
    checkpoint = resolve(name)
    assert checkpoint.id == meant
    assert meant in checkpoint.messages[0] and "taken for" in checkpoint.messages[0]


def test_a_name_of_several_lists_them() -> None:
    with pytest.raises(ModelNotFound, match=r"can be Qwen/Qwen2.5-7B or Qwen/Qwen2.5-7B-Instruct; write one"):
        resolve("qwen2.5:7b")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("qwen3-33b", "Qwen/Qwen3-32B"),
        ("dmeo", "demo"),
        ("qwen3", "Qwen/Qwen3-0.6B"),
        ("qwen3:32", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-8b-instruct", "Qwen/Qwen3-8B"),
        ("qwen2.5-7b-instrukt", "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_a_near_miss_is_told_what_was_probably_meant(name: str, meant: str) -> None:
    with pytest.raises(ModelNotFound, match=f"did you mean {re.escape(meant)}"):
        resolve(name)


def test_what_is_like_nothing_is_told_where_names_are_listed() -> None:
    with pytest.raises(ModelNotFound, match="see `qserve models`"):
        resolve("nobody/x")


def test_a_model_in_the_cache_has_a_short_name_too(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--me--My-Model" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    assert resolve("my-model").id == "me/My-Model"
