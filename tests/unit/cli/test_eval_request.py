"""What the flags of `qserve eval` come to."""

from __future__ import annotations

import pytest

from qserve.cli.eval.command import command
from qserve.cli.eval.request import EvalFlags, eval_request


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], True),
        (["--url", "http://127.0.0.1:8001"], True),
        (["--no-background"], False),
        (["--model", "demo"], False),
        (["--model", "demo", "--background"], True),
    ],
)
def test_users_go_first_where_there_may_be_some(words: list[str], expected: bool) -> None:
    """The server that --model starts has none, and keeps no slot free for them."""
    given = command.make_context("eval", ["--tasks", "task", *words])
    assert eval_request(EvalFlags(**given.params)).background is expected
