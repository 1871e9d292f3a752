"""The gateway's processes: when one is taken for hung."""

from __future__ import annotations

from qserve.supervisor.gateways.running import Silence


def test_a_process_that_says_nothing_for_several_looks_has_hung():
    silence = Silence()
    assert [silence.lasts(heard) for heard in (1, 7, 7, 7, 8, 8, 8, 8, 8)] == [False] * 9
    assert silence.lasts(8)


def test_a_pause_in_which_nobody_looked_is_no_silence():
    silence = Silence()
    assert not any(silence.lasts(heard) for heard in (5, 5, 6, 6, 7, 7))
