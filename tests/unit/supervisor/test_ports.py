"""The listening socket: which address may be opened with what key, and how a taken port is refused."""

from __future__ import annotations

import socket

import pytest

from qserve.errors import PortInUse, UsageError
from qserve.supervisor import ports


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ports.is_loopback(host)
    ports.check_exposure(host, has_key=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", "127.0.0.1.example.org", ""])
def test_everything_else_needs_one(host: str) -> None:
    assert not ports.is_loopback(host)
    with pytest.raises(UsageError, match="--api-key"):
        ports.check_exposure(host, has_key=False)
    ports.check_exposure(host, has_key=True)


def test_port_0_takes_a_free_one() -> None:
    with ports.bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] > 0
        assert not listener.getblocking()


def test_a_taken_port_is_named_with_a_way_out() -> None:
    with ports.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=rf"{port}.*--port 0") as caught:
            ports.bind("127.0.0.1", port)
    assert caught.value.exit_status == 4


def test_a_port_is_free_again_at_once() -> None:
    with ports.bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)), listener.accept()[0]:
            pass
    with ports.bind("127.0.0.1", port):
        pass


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--host 203\.0\.113\.9"):
        ports.bind("203.0.113.9", 0)


@pytest.mark.parametrize(
    ("host", "in_url"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_url_can_be_opened_in_a_browser_here(host: str, in_url: str) -> None:
    assert ports.url_host(host) == in_url
