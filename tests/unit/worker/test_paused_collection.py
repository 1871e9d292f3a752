"""Imports make only what stays: nothing is collected meanwhile, and afterwards it is as it was."""

from __future__ import annotations

import gc

import pytest

from qserve.worker.paused_collection import paused_collection


def test_the_collector_rests_while_a_library_is_imported_and_then_goes_on() -> None:
    assert gc.isenabled()
    with paused_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_library_that_is_missing_leaves_the_collector_on() -> None:
    with pytest.raises(ModuleNotFoundError), paused_collection():
        raise ModuleNotFoundError("torch")
    assert gc.isenabled()


def test_who_turned_it_off_before_finds_it_off() -> None:
    gc.disable()
    try:
        with paused_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
