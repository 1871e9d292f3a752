"""A download says how far it is, and why it can't be done: from a hub of our own, by the real client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from qserve.units import MIB
from tests.tiny.hub.loopback import COMMIT, OLDER, Hub, loopback_hub

SHARD = 20 * MIB
FILES = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 16_384}  # 4 MiB
SHARDED = {f"model-0000{at}-of-00003.safetensors": bytes([at]) * SHARD for at in (1, 2, 3)}
LARGE = {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps({"weight_map": {name: name for name in SHARDED}}).encode(),
    **SHARDED,
    "consolidated.safetensors": bytes(2 * MIB),
    "original/params.json": b"{}",
    "README.md": b"a model",
}
# Of a model, then of what can't be fetched: one import of the library for all.
PROGRAM = """
import json, sys
from qserve.core.checkpoint import Checkpoint
from qserve.errors import QserveError
from qserve.hub import download as module, retries
from types import SimpleNamespace
from huggingface_hub import constants

retries._FIRST_PAUSE_S = 0.01
for named in sys.argv[1:]:
    name, _, revision = named.partition("@")
    free = 5 if name == "me/larger" else 1 << 40
    module.shutil = SimpleNamespace(disk_usage=lambda folder: SimpleNamespace(free=free))
    if name == "me/unreachable":
        constants.ENDPOINT = "http://127.0.0.1:9"
    told = []
    try:
        asked = Checkpoint(name, None, {}, None, revision=revision or None)
        found = module.download(asked, lambda arrived: told.append(str(arrived)))
        end = {file.name: file.stat().st_size for file in found.folder.iterdir()}
        end["revision"] = [found.revision, found.folder.name]
    except QserveError as error:
        end = str(error)
    print(json.dumps([told, end]))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with loopback_hub(FILES) as one:
        yield one


@pytest.fixture
def large() -> Iterator[Hub]:
    with loopback_hub(LARGE) as one:
        yield one


def asked(hub: Hub, cache: Path, *names: str, **options: Any) -> subprocess.Popen[str]:
    """A process that fetches them."""
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache)}
    environment = {key: value for key, value in environment.items() if key not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    command = [sys.executable, "-c", PROGRAM, *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def fetched(hub: Hub, cache: Path, *names: str) -> list[tuple[list[str], Any]]:
    """What was told of each, and its end."""
    return ended(asked(hub, cache, *names))


def ended(process: subprocess.Popen[str]) -> list[tuple[list[str], Any]]:
    out, err = process.communicate(timeout=120)
    assert not process.returncode, err
    return [tuple(json.loads(line)) for line in out.splitlines()]


def test_a_model_comes_with_words_and_what_can_not_come_says_why(hub: Hub, tmp_path: Path) -> None:
    names = ("me/model", "me/model", "me/gated", "me/larger", "me/unreachable")
    first, again, gated, larger, unreachable = fetched(hub, tmp_path, *names)
    assert first[1] == {**{name: len(data) for name, data in FILES.items()}, "revision": [COMMIT, COMMIT]}
    assert first[0][0] == "0 B of 4 MiB"
    assert again == ([], first[1]), "all of it is there"
    assert "accept them on" in str(gated[1]) and "set HF_TOKEN" in str(gated[1])
    assert "me/larger needs 4 MiB more on disk" in str(larger[1]) and "HF_HOME=" in str(larger[1])
    assert "the weights of me/unreachable are not on this machine" in str(unreachable[1])
    assert "refused" in str(unreachable[1])


def test_a_revision_is_fetched_and_the_commit_that_it_is_told(hub: Hub, tmp_path: Path) -> None:
    branch, commit, main, none = fetched(hub, tmp_path, "me/model@v1", f"me/model@{OLDER}", "me/model", "me/model@v9")
    assert [dict(one[1])["revision"] for one in (branch, commit, main)] == [[OLDER] * 2, [OLDER] * 2, [COMMIT] * 2]
    assert "the weights of me/model at revision v9 are not on this machine" in str(none[1])
    assert "--revision takes a branch, a tag or a commit" in str(none[1])
    known = tmp_path / "models--me--model" / "refs"
    assert {file.name: file.read_text() for file in known.iterdir()} == {"v1": OLDER, "main": COMMIT}


WANTED = {name: len(LARGE[name]) for name in (*SHARDED, "config.json", "model.safetensors.index.json")}


def is_right(end: dict[str, Any], cache: Path) -> bool:
    """What is loaded is there, to the byte, and nothing else; nothing half done lies about."""
    folder = cache / "models--me--model" / "snapshots" / COMMIT
    found = {name: size for name, size in end.items() if name != "revision"}
    assert found == WANTED
    left = [file.name for file in (cache / "models--me--model" / "blobs").iterdir() if "incomplete" in file.name]
    return not left and all((folder / name).read_bytes() == LARGE[name] for name in WANTED)


def test_what_is_loaded_comes_over_a_bad_line(large: Hub, tmp_path: Path) -> None:
    """Three broken connections, a busy hub and a wrong byte; nothing is asked for that was there already."""
    first, second, third = SHARDED
    large.breaks = {first: [3 * MIB, 9 * MIB], second: [SHARD - 1]}
    large.wrong[third], large.num_busy = 1, 2
    [(told, end)] = fetched(large, tmp_path, "me/model")
    assert is_right(end, tmp_path)
    assert told[0].startswith("0 B of 60 MiB")
    assert large.sent[first] == large.sent[second] == SHARD, "each byte came once"
    assert large.sent[third] == 2 * SHARD, "the file was wrong, so all of it came again"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
def test_small_files_are_verified_as_well(large: Hub, tmp_path: Path, name: str) -> None:
    """The index above all, which says what else is fetched."""
    large.wrong[name] = 1
    [(_, end)] = fetched(large, tmp_path, "me/model")
    assert is_right(end, tmp_path)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("model.safetensors.index.json", "../../../evil"),
        ("model.safetensors.index.json", "a" * 39),
        (next(iter(SHARDED)), "/evil"),
        (next(iter(SHARDED)), "g" * 64),
        (next(iter(SHARDED)), ""),
    ],
)
def test_no_checksum_of_a_hub_names_a_path(large: Hub, tmp_path: Path, name: str, digest: str) -> None:
    """Files are kept by what the hub says of them, and a mirror may say anything."""
    large.digests[name] = digest
    [(_, end)] = fetched(large, tmp_path / "cache", "me/model")
    assert str(end).startswith(f"the hub has no checksum of me/model/{name}, but")
    assert [file.name for file in tmp_path.iterdir()] in ([], ["cache"]), "nothing lies beside it"
    assert not list(tmp_path.rglob("*evil*"))


def test_a_repository_without_all_its_shards_is_told(tmp_path: Path) -> None:
    with loopback_hub({name: data for name, data in LARGE.items() if "2-of" not in name}) as hub:
        [(_, end)] = fetched(hub, tmp_path, "me/model")
    assert end == "the hub lacks 1 of the files that the index of me/model names: model-00002-of-00003.safetensors…"


@pytest.mark.parametrize("name", ["config.json", next(iter(SHARDED))])
def test_a_file_that_is_never_right_is_named(large: Hub, tmp_path: Path, name: str) -> None:
    large.wrong[name] = 99
    [(_, end)] = fetched(large, tmp_path, "me/model")
    assert str(end).startswith(f"{name} came with another checksum than the hub says, twice")
    blobs = tmp_path / "models--me--model" / "blobs"
    assert not (blobs / large.digest(name)).exists(), "what is wrong is not kept"


def test_a_hub_that_stays_away_ends_it_and_what_came_is_kept(large: Hub, tmp_path: Path) -> None:
    """Each try without a new byte counts; one that brought some does not."""
    first = next(iter(SHARDED))
    large.breaks = {name: [0] * 99 for name in SHARDED}
    large.breaks[first] = [5 * MIB, *[0] * 99]
    [(_, end)] = fetched(large, tmp_path, "me/model")
    assert "the weights of me/model are not on this machine" in str(end)
    large.breaks, before = {}, large.sent[first]
    [(told, end)] = fetched(large, tmp_path, "me/model")
    assert is_right(end, tmp_path)
    assert told[0].startswith("5 MiB of 60 MiB") and before == 5 * MIB and large.sent[first] == SHARD


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_it_goes_on_where_it_was_ended(large: Hub, tmp_path: Path, how: signal.Signals) -> None:
    large.pause_s = 0.02
    process = asked(large, tmp_path, "me/model")
    deadline_s = time.monotonic() + 60
    while min(large.sent[name] for name in SHARDED) < 2 * MIB:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.send_signal(how)
    process.communicate(timeout=60)
    large.pause_s, large.sent = 0.0, type(large.sent)()
    [(told, end)] = fetched(large, tmp_path, "me/model")
    assert is_right(end, tmp_path)
    assert not told[0].startswith("0 B") and sum(large.sent[name] for name in SHARDED) < 3 * SHARD - 3 * MIB


def test_two_at_once_fetch_once(large: Hub, tmp_path: Path) -> None:
    large.pause_s = 0.005
    both = [asked(large, tmp_path, "me/model") for _ in range(2)]
    assert all(is_right(end, tmp_path) for process in both for _, end in ended(process))
    assert all(large.sent[name] == SHARD for name in SHARDED)
