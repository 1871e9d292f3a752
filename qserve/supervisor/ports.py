"""The listening socket: which address may be opened, and with what key."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Any

from qserve.errors import PortInUse, UsageError

__all__ = ["address_of", "bind", "check_exposure", "is_loopback", "url_host"]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, *, has_key: bool) -> None:
    """Refuse to open a model to the network without a key."""
    if not has_key and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines, and no key protects it. Put one into a file and name "
            "it with --api-key-file (or set the environment variable QSERVE_API_KEY), or keep --host 127.0.0.1"
        )


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises PortInUse or UsageError."""
    family, kind, proto, _, address = _info_of(host, port)
    listener = socket.socket(family, kind, proto)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} on {host} is taken by another program. Choose another with --port, "
                "for example --port 0 for any free one"
            ) from error
        if error.errno == errno.EACCES:
            raise UsageError(f"--port {port} needs more rights than you have; use a port from 1024 on") from error
        raise UsageError(f"--host {host} --port {port} can't be opened: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def address_of(host: str, port: int) -> tuple[Any, ...]:
    """What `bind` listens at. Raises UsageError."""
    return tuple(_info_of(host, port)[4])


def _info_of(host: str, port: int) -> tuple[Any, ...]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"--host {host} is not an address of a machine: {error.strerror}") from error


def url_host(host: str) -> str:
    """`host` as it stands in a URL that a browser on this machine can open."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - comparing, not binding
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
