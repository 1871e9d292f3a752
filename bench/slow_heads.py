"""Clients that never finish a request's head:  python bench/slow_heads.py PORT COUNT

Each sends a few bytes a second and comes again when it is closed. Prints a line a second: connections open, closed so
far. Ends when its standard input does.
"""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import sys
import time

_BEGIN = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: "
_MORE = b"a"


class SlowClients:
    """`num` connections to `port`, kept up."""

    def __init__(self, port: int, num: int) -> None:
        self._port = port
        self._num = num
        self._sockets: dict[int, socket.socket] = {}
        self._poll = select.epoll()
        self.num_closed = 0

    def keep_up(self, until_s: float) -> None:
        """Opens what is missing, then waits and buries what is closed."""
        while len(self._sockets) < self._num:
            self._open()
        while (left_s := until_s - time.monotonic()) > 0:
            for descriptor, _ in self._poll.poll(left_s):
                self._poll.unregister(descriptor)
                self._sockets.pop(descriptor).close()
                self.num_closed += 1
        for one in self._sockets.values():
            with contextlib.suppress(OSError):
                one.send(_MORE)

    def _open(self) -> None:
        one = socket.socket()
        one.setblocking(False)
        one.connect_ex(("127.0.0.1", self._port))
        self._poll.register(one.fileno(), select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR)
        self._sockets[one.fileno()] = one
        with contextlib.suppress(OSError):
            one.send(_BEGIN)


def main() -> None:
    """See the module."""
    port, num = int(sys.argv[1]), int(sys.argv[2])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    clients = SlowClients(port, num)
    while not select.select([sys.stdin], [], [], 0)[0]:
        clients.keep_up(time.monotonic() + 1)
        print(num, clients.num_closed, flush=True)


if __name__ == "__main__":
    main()
