"""Attaching to a Ray cluster that is there; none is ever started."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from qserve.errors import MissingExtra, UsageError, WorkerFailed

__all__ = ["joined", "ray_module"]

_CONNECT_S = 5.0
_AUTO = "auto"


def ray_module() -> Any:
    """The package. Raises MissingExtra."""
    # No reports of usage: nothing of this leaves the cluster.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "--ray") from error
    return ray


@contextlib.contextmanager
def joined(address: str) -> Iterator[None]:
    """Inside, this process is a driver of the cluster; what it placed there goes with it.

    Raises UsageError or WorkerFailed with one sentence: no cluster there, another version, a wrong token.
    """
    ray = ray_module()
    _check_reachable(address)
    options: dict[str, Any] = {}
    if address.rpartition(":")[0] in ("127.0.0.1", "localhost"):
        options["_node_ip_address"] = "127.0.0.1"
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", namespace="qserve", **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _refusal(address, error) from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Ray tries for 20 s and more, and then shows a traceback."""
    if address == _AUTO:
        return
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--ray {address!r} is neither auto nor HOST:PORT; the port of `ray start --head` is 6379")
    try:
        socket.create_connection((host, int(port)), _CONNECT_S).close()
    except OSError as error:
        why = error.strerror or str(error)
        raise WorkerFailed(
            f"--ray {address}: nothing answers there ({why}); `ray status` on the head node says whether it runs"
        ) from error


def _refusal(address: str, error: Exception) -> UsageError | WorkerFailed:
    said = " ".join(str(error).split())
    if "ersion mismatch" in said:
        return UsageError(
            f"--ray {address}: the cluster runs another version: {_between(said)}; install the same one here"
        )
    if "Could not find any running Ray instance" in said:
        return WorkerFailed(
            "--ray auto: this machine is not a node of a running Ray cluster; start one (`ray start --head`), join one "
            "(`ray start --address=HOST:PORT`), or name it: --ray HOST:PORT"
        )
    if "node" in said and ("not found" in said or "timed out" in said or "address" in said):
        return WorkerFailed(
            f"--ray {address}: this machine is not a node of that cluster ({said[:200]}); run qserve on one of its "
            "nodes, "
            f"or join it: ray start --address={address}"
        )
    return WorkerFailed(
        f"--ray {address}: the cluster refused ({said[:200] or type(error).__name__}); if it needs a token, "
        "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH must be set here as well"
    )


def _between(said: str) -> str:
    return said.partition("ersion mismatch:")[2].strip()[:300]
