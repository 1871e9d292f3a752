"""Verdicts are read in bounded time, whatever a judge's model wrote and its operator wants found."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.reward.judges.template import BUNDLED, read_template
from qserve.reward.judges.verdict import LIMIT_S, MAX_CHARS, last_match, tail_of, verdict_pattern

LENGTH = 300_000
ENDLESS = {"(a+)+$": "ab", "(a|aa)+$": "ab", "(x+x+)+y": "x", r"(.*)*\d\Z": "x", r"(?s)(.*?,){20}P": "1,"}
"""Patterns that backtrack for ever, and what of."""


@pytest.mark.parametrize("unit", ["\n", " ", "*", "score", "verdict", "score\n", "Verdict:", "1", "A", "</think>"])
@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_patterns_take_time_by_the_length_of_a_text(name: str, unit: str) -> None:
    pattern = verdict_pattern(read_template(name, "here", Path()).verdict)
    text = (unit * LENGTH)[:LENGTH]
    for one in (text, text + "Score: x", "score" + text, "verdict" + text + "_"):
        for _ in pattern.finditer(one, timeout=5.0):  # of squares: minutes
            pass


@pytest.mark.parametrize("pattern", ENDLESS)
def test_a_pattern_that_would_go_on_for_ever_finds_nothing_and_holds_up_no_thread(pattern: str) -> None:
    unit = ENDLESS[pattern]
    text = unit[0] * (MAX_CHARS - 1) + unit[-1]
    started = time.thread_time()
    # Then it is one or two, at every try; on a busy machine three were seen once, and eight.
    assert any(_turns_beside(pattern, text) > 3 for _ in range(3)), "the interpreter was held"
    assert time.thread_time() - started < 10 * LIMIT_S


def _turns_beside(pattern: str, text: str) -> int:
    """How often this thread runs while another one looks for the pattern."""
    reader = threading.Thread(target=last_match, args=(pattern, text))
    reader.start()
    turns = 0
    while reader.is_alive():
        turns += 1
        time.sleep(0.001)
    return turns


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("Score: 9" + "." * (MAX_CHARS - 8), "9"),
        ("Score: 9" + "." * (MAX_CHARS - 7), None),
        ("<think>Score: 1</think>" * 3 + "Score: 2", "2"),
        ("Score: 7\nScore: 8", "8"),
    ],
)
def test_the_end_of_an_answer_is_read(answer: str, verdict: str | None) -> None:
    assert last_match(r"Score: (\d)", tail_of(answer)) == verdict


def test_a_line_does_not_begin_where_an_answer_is_cut() -> None:
    assert last_match("(?m)^x", tail_of("x" * (MAX_CHARS + 5))) is None
    assert last_match("(?m)^x", tail_of("y\n" + "x" * MAX_CHARS)) == "x"


def test_what_is_no_pattern_is_refused_with_what_is_wrong() -> None:
    with pytest.raises(UsageError, match=r"is not a regular expression: missing \)"):
        verdict_pattern("(")
