"""Refusals fill no disk."""

from __future__ import annotations

import logging

from qserve.gateway.http.refused_log import RefusedLog


def test_one_line_a_minute_for_each_peer_with_the_count_of_the_others(caplog):
    now_s = [0.0]
    log = RefusedLog(lambda: now_s[0])
    with caplog.at_level(logging.WARNING, "qserve.gateway"):
        for _ in range(10_000):
            log.refused("192.0.2.7", "the request is not HTTP")
        log.refused("192.0.2.8", "the request is not HTTP")
        assert len(caplog.messages) == 2
        now_s[0] = 61
        log.refused("192.0.2.7", "the request is not HTTP")
    assert len(caplog.messages) == 3 and "9999 more" in caplog.messages[-1]


def test_peers_are_bounded():
    log = RefusedLog(lambda: 0.0)
    logging.getLogger("qserve.gateway").disabled = True
    try:
        for number in range(5000):
            log.refused(str(number), "x")
    finally:
        logging.getLogger("qserve.gateway").disabled = False
    assert len(log._lines) <= 1024
