"""Guessing keys is slowed down, and nobody is locked out."""

from __future__ import annotations

import pytest

from qserve.gateway.key_throttle import KeyThrottle

_ADDRESS = "192.0.2.7"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def _throttled(clock, address=_ADDRESS):
    throttle = KeyThrottle(clock)
    for _ in range(1000):
        throttle.count_wrong(address)
    return throttle


def test_a_few_wrong_keys_cost_nothing():
    throttle = KeyThrottle(Clock())
    for _ in range(5):
        throttle.count_wrong(_ADDRESS)
    assert throttle.pause_s(_ADDRESS, is_trusted=False) == 0


def test_many_make_each_further_key_wait():
    assert 0 < _throttled(Clock()).pause_s(_ADDRESS, is_trusted=False) <= 2


def test_whoever_has_shown_the_right_key_does_not_wait():
    """Behind a load balancer the address is everybody's."""
    assert _throttled(Clock()).pause_s(_ADDRESS, is_trusted=True) == 0


def test_other_addresses_do_not_wait():
    assert _throttled(Clock()).pause_s("192.0.2.8", is_trusted=False) == 0


def test_a_network_of_ipv6_is_one_address():
    assert _throttled(Clock(), "2001:db8::1").pause_s("2001:db8::ffff", is_trusted=False) > 0


def test_it_is_forgiven_within_two_minutes_however_many_they_were():
    clock = Clock()
    throttle = _throttled(clock)
    clock.now_s += 120
    assert throttle.pause_s(_ADDRESS, is_trusted=False) == 0


def test_addresses_are_bounded():
    throttle = KeyThrottle(Clock())
    for number in range(20_000):
        throttle.count_wrong(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(throttle._wrong) <= 10_000


@pytest.mark.parametrize("address", ["", "unix", "::1", "127.0.0.1"])
def test_any_address_will_do(address):
    throttle = KeyThrottle(Clock())
    throttle.count_wrong(address)
    assert throttle.pause_s(address, is_trusted=False) == 0
