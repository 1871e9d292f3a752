"""Ids of the items of an answer follow from its own."""

from __future__ import annotations

from qserve.wire.derived_ids import derived_id


def test_they_are_the_same_again_and_of_no_other_answer() -> None:
    made = [derived_id(answer, number) for answer in ("a", "b", "a/1") for number in range(3)]
    assert made == [derived_id(answer, number) for answer in ("a", "b", "a/1") for number in range(3)]
    assert len(set(made)) == len(made) and all(len(one) == 32 and int(one, 16) >= 0 for one in made)
