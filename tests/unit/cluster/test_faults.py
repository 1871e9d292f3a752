"""What is wrong with a cluster is one sentence, before anything starts. With a real cluster: tests/tiny/cluster."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from qserve.cli.up.command import command
from qserve.cluster.checkpoints import Location
from qserve.cluster.join import joined
from qserve.cluster.survey import checked
from qserve.errors import MissingExtra, UsageError, WorkerFailed


def test_without_ray_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"--ray needs the package ray.*pip install .*ray\[default\]=="):
        joined("auto").__enter__()


def test_a_cluster_that_is_not_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, and nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(WorkerFailed, match=f"--ray {address}: nothing answers there .*`ray status`"):
            joined(address).__enter__()


@pytest.mark.parametrize("address", ["6379", "head", "head:", "head:99999", "ray://head:10001x"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="neither auto nor HOST:PORT"):
        joined(address).__enter__()


@pytest.mark.parametrize("way", [Location.MISSING, Location.OTHER])
def test_a_node_without_the_checkpoint(way: Location) -> None:
    with pytest.raises(UsageError, match=r"the node 10\.0\.0\.2 has .*/models/x \(as 1 others\); put it on a path"):
        checked({Location.SAME_PATH: ["10.0.0.1"], way: ["10.0.0.2", "10.0.0.3"]}, Path("/models/x"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--max-replicas", "3"), "--max-replicas: for workers on a Ray cluster; add --ray"),
        (("--ray-ports", "1-2"), "--ray-ports: for workers on a Ray cluster"),
        (("--ray", "auto", "--min-replicas", "2"), "--min-replicas 2 needs --max-replicas"),
        (("--ray", "auto", "--replicas", "2", "--max-replicas", "3"), "leave one out"),
        (("--ray", "auto", "--min-replicas", "4", "--max-replicas", "3"), "--min-replicas 4 is more than"),
        (("--ray", "auto", "--ray-ports", "7"), "--ray-ports '7' is not a range"),
        (("--ray", "auto", "--users", "30"), "--users: for a load"),
    ],
)
def test_flags_that_do_not_go_together(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--model", "demo", "--state-dir", str(tmp_path), *arguments])
    assert isinstance(result.exception, UsageError), result.output
    assert said in str(result.exception)
