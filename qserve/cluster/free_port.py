"""A port of a node that a worker may listen on."""

from __future__ import annotations

import random
import socket
from contextlib import closing

from qserve.cluster.settings import PortRange
from qserve.errors import WorkerFailed

__all__ = ["free_port", "listening"]

_MOST_TRIED = 200


def listening(host: str, ports: PortRange) -> socket.socket:
    """A listener on one of `ports`, chosen at random: several agents of a node look for one at once.

    Raises WorkerFailed where none can be had.
    """
    why = ""
    for port in random.sample(range(ports.first, ports.last + 1), min(len(ports), _MOST_TRIED)):
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        # A worker may follow its predecessor at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            why = error.strerror or str(error)
            listener.close()
        else:
            return listener
    raise WorkerFailed(f"none of the ports {ports} can be opened on {host} ({why}); choose others with --ray-ports")


def free_port(host: str, ports: PortRange) -> int:
    """A port that nobody listens on now."""
    with closing(listening(host, ports)) as listener:
        port: int = listener.getsockname()[1]
        return port
