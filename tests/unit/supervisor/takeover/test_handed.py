"""What a service says of itself can be read by another release."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.supervisor.child import Descriptors
from qserve.supervisor.takeover.handed import About, Handed
from qserve.supervisor.takeover.launched import Launched

ABOUT = About(("127.0.0.1", 8000), "20261130-1", Launched({"model": "demo"}), {Path("/m"): "digest"}, "it stops")


def test_it_comes_back_as_it_was_told() -> None:
    assert About.from_document(ABOUT.to_document()) == ABOUT
    assert ABOUT.port == 8000


def test_of_another_release_what_is_known_is_read() -> None:
    told = About.from_document({"address": ["::1", 9], "run": "r", "launched": {"versions": {"qserve": "9"}}, "new": 1})
    assert told == About(("::1", 9), "r", Launched(versions={"qserve": "9"}), {})


def test_what_is_no_service_is_an_error() -> None:
    with pytest.raises(KeyError):
        About.from_document({"run": "r"})


def test_descriptors_come_in_order() -> None:
    listener, lock, ends = Handed(Path("/p"), ()).descriptors([10, 11, 12, 13, 14, 15, 16, 17])
    assert (listener, lock) == (10, 11)
    assert ends == [Descriptors(12, 13, 14), Descriptors(15, 16, 17)]
