"""What runs on a node without Ray: the lease, ports, the log's new part, and where the checkpoint is."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from qserve.cluster.agent import Lease, LogTail
from qserve.cluster.checkpoints import Location, checkpoint_folder, key_of, locate_checkpoint
from qserve.cluster.free_port import free_port, listening
from qserve.cluster.probe import Probe, is_reachable
from qserve.cluster.settings import PortRange
from qserve.demo import chat_model_path
from qserve.errors import UsageError, WorkerFailed


def checkpoint(folder: Path, size: int = 10) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(size))
    return folder


def test_a_lease_that_nobody_renews_ends() -> None:
    ended = threading.Event()
    Lease(0.05, ended.set)
    assert ended.wait(60)


def test_a_lease_that_is_renewed_goes_on() -> None:
    ended = threading.Event()
    lease = Lease(20.0, ended.set)
    lease.renew()
    assert not ended.wait(0.1)


def test_a_port_of_the_range_is_taken() -> None:
    with listening("127.0.0.1", PortRange(20000, 29999)) as held:
        port = held.getsockname()[1]
        with pytest.raises(WorkerFailed, match=f"none of the ports {port}-{port} can be opened.*--ray-ports"):
            free_port("127.0.0.1", PortRange(port, port))


def test_a_probe_greets_whoever_reaches_it() -> None:
    port = Probe().open("127.0.0.1", PortRange(20000, 29999))
    assert is_reachable("127.0.0.1", port, 10.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it answers, and is not ours
        assert not is_reachable("127.0.0.1", silent.getsockname()[1], 0.1)


def test_a_log_is_told_once(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log")
    assert tail.read() == b""
    tail.file.write_bytes(b"one\n")
    assert tail.read() == b"one\n"
    with tail.file.open("ab") as log:
        log.write(b"two\n")
    assert (tail.read(), tail.read()) == (b"two\n", b"")


def test_a_checkpoint_is_looked_for_at_the_same_path_first(tmp_path: Path) -> None:
    there, other = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b", size=11)
    wanted = key_of(there)
    assert locate_checkpoint(there, "", wanted) is Location.SAME_PATH
    assert locate_checkpoint(other, "", wanted) is Location.OTHER
    assert locate_checkpoint(tmp_path / "none", "", wanted) is Location.MISSING


def test_one_with_a_name_is_found_by_it(tmp_path: Path) -> None:
    demo = Path(chat_model_path())
    assert locate_checkpoint(tmp_path / "none", "demo", key_of(demo)) is Location.OWN_PATH
    assert checkpoint_folder(tmp_path / "none", "demo", key_of(demo)) == demo
    assert locate_checkpoint(tmp_path / "none", "someone/some-model", key_of(demo)) is Location.FETCHED


def test_a_node_without_it_says_so(tmp_path: Path) -> None:
    """One that came after the others were asked: nothing else may be served in its place."""
    wanted = key_of(checkpoint(tmp_path / "a"))
    assert checkpoint_folder(tmp_path / "a", "", wanted) == tmp_path / "a"
    with pytest.raises(UsageError, match=r"there is no .*/none on this node"):
        checkpoint_folder(tmp_path / "none", "", wanted)
    with pytest.raises(UsageError, match=r"there is another checkpoint at .*/b on this node"):
        checkpoint_folder(checkpoint(tmp_path / "b", size=11), "", wanted)
