"""What `qserve up` would refuse is told before a start, with what it was asked for."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from qserve.cli.up.check_start import check_start
from qserve.errors import DoesNotFit, QserveError, UsageError


@pytest.mark.parametrize(
    ("words", "kind", "told"),
    [
        (["--max-model-len", "x"], click.UsageError, "int8: Invalid value for '--max-model-len': "),
        (["--max-model-lem", "8"], click.UsageError, "int8: No such option '--max-model-lem'"),
        (["--max-model-len", "9000000"], UsageError, "int8: "),
        (["--kv-cache-memory-bytes", "900GiB"], DoesNotFit, "int8: "),
    ],
)
def test_every_refusal_says_of_what(words: list[str], kind: type[Exception], told: str, tmp_path: Path) -> None:
    with pytest.raises((QserveError, click.ClickException)) as caught:
        check_start(["--model", "demo", "--gpu", "none", *words], tmp_path, "int8: ")
    assert type(caught.value) is kind
    error = caught.value
    said = error.format_message() if isinstance(error, click.ClickException) else str(error)
    assert said.startswith(told) and said.count("int8: ") == 1
    if isinstance(error, click.UsageError):
        assert error.exit_code == 2 and error.ctx is not None and error.ctx.info_name == "up"
