"""What the cache holds is listed and deleted, by the real library over a cache of our own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMITS = {"main": "a" * 40, "v1": "b" * 40}
PROGRAM = """
import json, sys
from qserve.errors import QserveError
from qserve.hub.local import local_models, named, remove

for words in sys.argv[1:]:
    try:
        name, _, revision = words.partition("@")
        end = remove(named(name, revision or None)) if words != "list" else [
            [one.id, one.commit[:2], list(one.refs), one.num_bytes, one.num_bytes_partial] for one in local_models()
        ]
    except QserveError as error:
        end = str(error)
    print(json.dumps(end))
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Two commits of a model that share a file, another model, and a file that is not whole."""
    made(tmp_path, "Qwen/Qwen3-8B", {"main": {"config.json": 10, "w": 100}, "v1": {"config.json": 10, "w": 70}})
    made(tmp_path, "me/other", {"main": {"config.json": 5}})
    (tmp_path / "models--Qwen--Qwen3-8B" / "blobs" / "c.incomplete").write_bytes(bytes(30))
    return tmp_path


def made(cache: Path, model: str, files: dict[str, dict[str, int]]) -> None:
    repo = cache / f"models--{model.replace('/', '--')}"
    for ref, sizes in files.items():
        snapshot = repo / "snapshots" / COMMITS[ref]
        for folder in (snapshot, repo / "blobs", repo / "refs"):
            folder.mkdir(parents=True, exist_ok=True)
        (repo / "refs" / ref).write_text(COMMITS[ref])
        for name, size in sizes.items():
            blob = repo / "blobs" / f"{name}-{size}"
            blob.write_bytes(bytes(size))
            (snapshot / name).symlink_to(Path("../../blobs") / blob.name)


def told(cache: Path, *words: str) -> list[object]:
    environment = {**os.environ, "HF_HUB_CACHE": str(cache)}
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert not done.returncode, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_models_are_listed_with_their_revisions(cache: Path, tmp_path: Path) -> None:
    [listed] = told(cache, "list")
    assert sorted(listed) == [  # type: ignore[type-var]
        ["Qwen/Qwen3-8B", "aa", ["main"], 110, 30],
        ["Qwen/Qwen3-8B", "bb", ["v1"], 80, 30],
        ["me/other", "aa", ["main"], 5, 0],
    ]
    assert told(tmp_path / "none", "list") == [[]]


def test_one_revision_goes_and_what_others_need_stays(cache: Path) -> None:
    freed, listed = told(cache, "qwen/qwen3-8b@v1", "list")
    assert freed == 70, "config.json is the other commit's, too"
    assert [one[1] for one in listed if one[0] == "Qwen/Qwen3-8B"] == ["aa"]  # type: ignore[attr-defined]
    assert (cache / "models--Qwen--Qwen3-8B" / "snapshots" / COMMITS["main"] / "config.json").read_bytes() == bytes(10)


def test_a_model_goes_with_what_is_not_whole(cache: Path) -> None:
    assert told(cache, "Qwen/Qwen3-8B") == [10 + 100 + 70 + 30]
    assert [path.name for path in cache.glob("models--*")] == ["models--me--other"]


def test_what_is_not_there_is_told_with_what_is(cache: Path) -> None:
    slip, revision, none = (str(one) for one in told(cache, "Qwen/Qwen3-8", "Qwen/Qwen3-8B@v9", "you/nothing"))
    [few] = told(cache, "Qwen/Qwen3-8B@aa")
    assert "not at revision aa" in str(few), "seven digits name a commit"
    assert slip == "Qwen/Qwen3-8 is not on this machine; did you mean Qwen/Qwen3-8B?"
    assert revision == f"Qwen/Qwen3-8B is here, but not at revision v9; here are main or {'a' * 12}, v1 or {'b' * 12}"
    assert none == "you/nothing is not on this machine; `qserve models --local` lists what is"
    assert len(list(cache.glob("models--*"))) == 2
