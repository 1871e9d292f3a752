"""A model at a revision: how it is named, what the cache and the hub have of it, and what is refused."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from qserve.errors import ModelNotFound, UsageError
from qserve.hub import cache, resolve
from qserve.hub.revisions import check_revision, split_revision, with_revisions

OLD, NEW = "a" * 40, "b" * 39 + "0"
CONFIG: dict[str, Any] = {
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


def config(positions: int) -> str:
    return json.dumps({**CONFIG, "max_position_embeddings": positions})


@pytest.fixture(autouse=True)
def cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """me/mine at two commits, of which main is the newer one and v1.0 the older; refs as the hub's library writes."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    repo = tmp_path / "hub" / "models--me--mine"
    for commit, positions in ((OLD, 64), (NEW, 128)):
        folder = repo / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config(positions))
        (folder / "model.safetensors").write_bytes(FILE)
    for ref, commit in {"main": NEW, "v1.0": OLD, "refs/pr/3": OLD}.items():
        file = repo / "refs" / ref
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(commit)
    return repo


@pytest.mark.parametrize(
    ("model", "commit"),
    [
        ("me/mine", NEW),
        ("me/mine@main", NEW),
        ("me/mine@v1.0", OLD),
        ("me/mine@refs/pr/3", OLD),
        (f"me/mine@{OLD}", OLD),
        (f"me/mine@{OLD[:7]}", OLD),
        ("mine@v1.0", OLD),
    ],
)
def test_the_cache_has_a_folder_a_commit(model: str, commit: str) -> None:
    checkpoint = resolve(model)
    assert (checkpoint.id, checkpoint.revision) == ("me/mine", commit)
    assert checkpoint.folder is not None and checkpoint.folder.name == commit
    assert checkpoint.spec.max_position_embeddings == {OLD: 64, NEW: 128}[commit]


@pytest.mark.parametrize("revision", ["v2.0", "aaaaaa", "c" * 40, "Main"])
def test_what_is_missing_offline_lists_what_is_there(revision: str) -> None:
    with pytest.raises(ModelNotFound) as refused:
        resolve(f"me/mine@{revision}")
    text = str(refused.value)
    assert repr(revision) in text and "HF_HUB_OFFLINE=1 forbids" in text
    assert f"refs/pr/3, v1.0 ({OLD}), main ({NEW})" in text


def test_a_known_model_at_a_revision_is_not_planned_from_the_table() -> None:
    assert resolve("Qwen/Qwen3-8B").revision is None
    assert "pin no revision" in resolve("Qwen/Qwen3-8B").messages[0]
    with pytest.raises(ModelNotFound, match="leave the revision out to plan from the bundled dimensions"):
        resolve("Qwen/Qwen3-8B@v1")
    with pytest.raises(ModelNotFound, match="is not in the local cache"):
        resolve("qwen3-8b@v1")
    with pytest.raises(ModelNotFound, match="is no id of the hub"):
        resolve("something@v1")


def test_a_folder_of_the_cache_has_its_commit_and_any_other_none(cached: Path, tmp_path: Path) -> None:
    assert resolve(str(cached / "snapshots" / OLD)).revision == OLD
    other = tmp_path / "model@v1"
    other.mkdir()
    (other / "config.json").write_text(config(64))
    assert resolve(str(other)).revision is None, "an @ in the name of a folder is a part of it"
    with pytest.raises(UsageError, match="is a path on this machine and has no revisions"):
        resolve(f"{other}@main")
    with pytest.raises(UsageError, match="demo comes with qserve and has no revisions"):
        resolve("demo@main")
    with pytest.raises(UsageError, match="is a path on this machine"):
        resolve("./nothing@main")


@pytest.mark.parametrize(
    "revision",
    [
        *("", " ", "../x", "a..b", "/main", "main/", "a//b", "-v1", ".hidden", "a/.b", "x.lock", "x.lock/y", "v1."),
        *("a b", "a\nb", "v1\n", "a@b", "a?b", "a#b", "a%2e", "a\\b", "a:b", "~x", "ä", "x" * 256, "@"),
    ],
)
def test_what_is_no_revision_is_refused_before_anything_is_looked_up(revision: str) -> None:
    with pytest.raises(UsageError, match="is not a revision; it takes a branch, a tag or a commit"):
        check_revision(revision)
    with pytest.raises(UsageError, match="is not a revision"):
        resolve(f"me/mine@{revision}")


@pytest.mark.parametrize("revision", ["main", "v1.0", "refs/pr/12", "feature/x_y-z+1", OLD, "0", "x" * 255])
def test_what_git_calls_so_is_one(revision: str) -> None:
    assert check_revision(revision) == revision
    assert split_revision(f"me/mine@{revision}") == ("me/mine", revision)


def test_options_stand_behind_their_models() -> None:
    both = {"model": "me/mine", "revision": "v1.0", "reward": "me/judge", "reward_revision": "main", "quant": "bf16"}
    assert with_revisions(both) == {"model": "me/mine@v1.0", "reward": "me/judge@main", "quant": "bf16"}
    assert with_revisions({"model": "me/mine@v1.0", "revision": "v1.0"}) == {"model": "me/mine@v1.0"}
    assert with_revisions({"model": None, "revision": None}) == {"model": None}
    for wrong, told in (
        ({"model": "me/mine@v1", "revision": "v2"}, "name two revisions"),
        ({"model": None, "revision": "v2"}, "no --model is named"),
        ({"model": "me/mine", "reward_revision": "v2"}, "no --reward is named"),
        ({"reward": "demo", "reward_revision": "v2"}, "--reward-revision v2: demo comes with qserve"),
    ):
        with pytest.raises(UsageError, match=told):
            with_revisions(wrong)


def test_a_damaged_cache_is_no_traceback(cached: Path) -> None:
    (cached / "refs" / "main").write_bytes(b"\xff\xfe")
    (cached / "refs" / "gone").write_text("d" * 40)
    assert cache.snapshot("me/mine") is None, "two are there, and none is known to be main"
    assert cache.revisions("me/mine") == {OLD: ("refs/pr/3", "v1.0"), NEW: ()}
    assert cache.revisions("me/nothing") == {} and cache.commit_of(Path("/tmp/x")) is None


class _Hub(BaseHTTPRequestHandler):
    """A hub whose main moves between two requests."""

    asked: ClassVar[list[str]] = []
    tells_commit: ClassVar[bool] = True
    on_cdn: ClassVar[dict[str, str]] = {}

    redirects: ClassVar[dict[str, str] | None] = None

    def do_GET(self) -> None:
        if self.path.startswith("/cdn/"):
            self._send(200, config(64).encode(), self.on_cdn)
            return
        *_, revision, file = self.path.split("/", 5)
        if file == "config.json" and self.redirects is not None:
            self._send(302, b"", {"Location": "/cdn/config", **self.redirects})
            return
        self.asked.append(f"{revision} {file}")
        commit = {"main": NEW, "v1.0": OLD, OLD: OLD, NEW: NEW, "refs%2Fpr%2F3": OLD}.get(revision)
        if commit is None:
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif file == "config.json":
            told = {"X-Repo-Commit": commit} if self.tells_commit else {}
            self._send(200, config({OLD: 64, NEW: 128}[commit]).encode(), told)
        elif file == "model.safetensors":
            self._send(206, FILE, {})
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(_Hub, "asked", [])
    yield _Hub.asked
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("model", "asked", "commit"),
    [
        ("me/remote", "main", NEW),
        ("me/remote@v1.0", "v1.0", OLD),
        ("me/remote@refs/pr/3", "refs%2Fpr%2F3", OLD),
        ("Qwen/Qwen3-8B@v1.0", "v1.0", OLD),
        ("me/mine@refs/heads/x", "", ""),
    ],
)
def test_all_files_are_read_at_the_commit_of_the_first(hub: list[str], model: str, asked: str, commit: str) -> None:
    if not commit:
        with pytest.raises(ModelNotFound, match=r"the hub has no revision 'refs/heads/x' of 'me/mine'.*commits/main"):
            resolve(model)
        return
    checkpoint = resolve(model)
    assert checkpoint.revision == commit and checkpoint.folder is None
    assert hub[0] == f"{asked} config.json"
    assert hub[1:] == [f"{commit} model.safetensors.index.json", f"{commit} model.safetensors"]


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("redirect", "last", "commit"),
    [
        ({"X-Repo-Commit": OLD}, {}, OLD),
        ({"X-Repo-Commit": OLD}, {"X-Repo-Commit": NEW}, OLD),
        ({"X-Repo-Commit": "a b"}, {"X-Repo-Commit": OLD}, OLD),
        ({}, {"X-Repo-Commit": OLD}, OLD),
        ({}, {}, "main"),
    ],
)
def test_the_first_hop_that_tells_the_commit_counts(
    monkeypatch: pytest.MonkeyPatch, redirect: dict[str, str], last: dict[str, str], commit: str
) -> None:
    monkeypatch.setattr(_Hub, "redirects", redirect)
    monkeypatch.setattr(_Hub, "on_cdn", last)
    assert resolve("me/remote@main").revision == commit


@pytest.mark.usefixtures("hub")
def test_a_mirror_that_names_no_commit_leaves_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Hub, "tells_commit", False)
    assert resolve("me/remote@v1.0").revision == "v1.0"
    assert resolve("me/remote").revision is None


def test_a_hub_that_can_not_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelNotFound, match="and the hub could not be asked; the cache has"):
        resolve("me/mine@v2")
