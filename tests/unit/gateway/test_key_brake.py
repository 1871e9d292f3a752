"""Guessing keys is slowed down, and nobody is locked out."""

from __future__ import annotations

import pytest

from qserve.gateway.key_brake import KeyBrake

_ADDRESS = "192.0.2.7"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _braked(clock, address=_ADDRESS):
    brake = KeyBrake(clock)
    for _ in range(1000):
        brake.count_wrong(address)
    return brake


def test_a_few_wrong_keys_cost_nothing():
    brake = KeyBrake(Clock())
    for _ in range(5):
        brake.count_wrong(_ADDRESS)
    assert brake.pause_s(_ADDRESS, is_trusted=False) == 0


def test_many_make_each_further_key_wait():
    assert 0 < _braked(Clock()).pause_s(_ADDRESS, is_trusted=False) <= 2


def test_whoever_has_shown_the_right_key_does_not_wait():
    """Behind a load balancer the address is everybody's."""
    assert _braked(Clock()).pause_s(_ADDRESS, is_trusted=True) == 0


def test_other_addresses_do_not_wait():
    assert _braked(Clock()).pause_s("192.0.2.8", is_trusted=False) == 0


def test_a_network_of_ipv6_is_one_address():
    assert _braked(Clock(), "2001:db8::1").pause_s("2001:db8::ffff", is_trusted=False) > 0


def test_it_is_forgiven_within_two_minutes_however_many_they_were():
    clock = Clock()
    brake = _braked(clock)
    clock.now_s += 120
    assert brake.pause_s(_ADDRESS, is_trusted=False) == 0


def test_addresses_are_bounded():
    brake = KeyBrake(Clock())
    for number in range(20_000):
        brake.count_wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(brake._wrong) <= 10_000


@pytest.mark.parametrize("address", ["", "unix", "::1", "127.0.0.1"])
def test_any_address_will_do(address):
    brake = KeyBrake(Clock())
    brake.count_wrong(address)
    assert brake.pause_s(address, is_trusted=False) == 0
