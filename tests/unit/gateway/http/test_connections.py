"""Which connection goes when there are too many, and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from qserve.gateway.http.connections import ConnectionLimits, Connections, limits_for


@dataclass(eq=False)
class Connection:
    name: str
    is_closed: bool = False

    def close_now(self) -> None:
        self.is_closed = True


def _connections(num_open=4, per_peer=100):
    return Connections(ConnectionLimits(num_open, per_peer))


def test_the_oldest_without_a_key_goes_first():
    connections = _connections()
    first, second, honest = Connection("first"), Connection("second"), Connection("honest")
    for one in (honest, first, second):
        connections.add(one, "10.0.0.1")
    connections.trust(honest)
    assert connections.make_space() and first.is_closed
    assert connections.make_space() and second.is_closed
    assert not honest.is_closed


def test_a_trusted_one_goes_only_while_it_is_idle():
    connections = _connections()
    honest = Connection("honest")
    connections.add(honest, "10.0.0.1")
    connections.trust(honest)
    connections.answers(honest)
    assert not connections.make_space() and not honest.is_closed
    connections.rests(honest)
    assert connections.make_space() and honest.is_closed


def test_one_peer_without_a_key_has_so_many_and_the_next_closes_its_oldest():
    connections = _connections(num_open=100, per_peer=2)
    mine, others = [Connection(str(n)) for n in range(3)], Connection("other")
    connections.add(others, "10.0.0.2")
    for one in mine:
        connections.add(one, "10.0.0.1")
    assert [one.is_closed for one in mine] == [True, False, False] and not others.is_closed


def test_a_peers_trusted_connections_do_not_count():
    connections = _connections(num_open=100, per_peer=2)
    balancer = [Connection(str(n)) for n in range(50)]
    for one in balancer:
        connections.add(one, "10.0.0.1")
        connections.trust(one)
    assert not any(one.is_closed for one in balancer)


def test_a_wrong_key_ends_the_trust():
    connections = _connections()
    one = Connection("one")
    connections.add(one, "10.0.0.1")
    connections.trust(one)
    assert connections.is_trusted(one)
    connections.distrust(one, "10.0.0.1")
    assert not connections.is_trusted(one) and connections.make_space() and one.is_closed


def test_what_was_evicted_is_not_counted_twice():
    connections = _connections(num_open=1)
    one = Connection("one")
    connections.add(one, "10.0.0.1")
    assert connections.is_full
    connections.make_space()
    connections.remove(one)
    assert connections.num_open == 0 and not connections.is_full and not connections.make_space()


@pytest.mark.parametrize("num_descriptors", [64, 256, 1024, 20_000, 65_536])
def test_connections_and_their_workers_leave_descriptors_to_spare(num_descriptors):
    limits = limits_for(num_descriptors, num_in_use=30)
    assert limits.num_open >= 2 and 1 <= limits.num_untrusted_per_peer <= limits.num_open
    assert 30 + 2 * limits.num_open <= num_descriptors - min(128, num_descriptors // 8)
