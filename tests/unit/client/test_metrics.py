"""Prometheus text: escapes are read, and one bad line costs itself alone."""

from __future__ import annotations

import pytest

from qserve.client.metrics import samples_of, total

_TEXT = """# HELP a_total With \\n in it.
# TYPE a_total counter
a_total{path="C:\\\\x \\"y\\"",z="1,2"} 3.0
a_total{path="",z=""} 4
a_created 1.7e+09
b{le="+Inf"} +Inf 1700000000
"""


def test_samples_have_the_names_that_stand_there() -> None:
    samples = samples_of(_TEXT)
    assert [one.name for one in samples] == ["a_total", "a_total", "a_created", "b"]
    assert samples[0].labels == {"path": 'C:\\x "y"', "z": "1,2"} and samples[-1].value == float("inf")
    assert total(samples, "a_total") == 7 and total(samples, "a") is None


def test_only_lines_of_a_prefix_are_read() -> None:
    assert [one.name for one in samples_of(_TEXT, "a_c", "b")] == ["a_created", "b"]


_NO_SAMPLES = ["<html>", "a", "a{", 'a{b="c"', "a{b=c} 1", "a one", '{"error": {}}', "{} 1", '"', "a{b"]


@pytest.mark.parametrize("line", _NO_SAMPLES)
def test_a_line_that_is_no_sample_is_left_out(line: str) -> None:
    assert [one.value for one in samples_of(f"x 1\n{line}\ny 2")] == [1, 2]
