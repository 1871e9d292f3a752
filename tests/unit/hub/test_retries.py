"""Which failures of a download are tried again, and after how long."""

from __future__ import annotations

import errno
from types import SimpleNamespace

import pytest

from qserve.hub.retries import may_pass, pause_s


def answered(status: int, **headers: str) -> Exception:
    error = Exception(f"status {status}")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    error.response = SimpleNamespace(status_code=status, headers=named)  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        *((answered(status), True) for status in (408, 416, 429, 500, 502, 503, 504)),
        *((answered(status), False) for status in (400, 401, 403, 404, 451)),
        (OSError(errno.ENOSPC, "no space left"), False),
        (OSError(errno.EDQUOT, "quota"), False),
        (OSError(errno.ECONNRESET, "reset"), True),
        (Exception("peer closed connection"), True),
    ],
    ids=str,
)
def test_what_the_hub_or_the_disk_refuses_is_final(error: Exception, expected: bool) -> None:
    assert may_pass(error) == expected


def test_it_waits_as_long_as_the_hub_asks_within_reason() -> None:
    assert [pause_s(Exception(), failures) for failures in (1, 2, 5, 9)] == [1.0, 2.0, 16.0, 30.0]
    assert [pause_s(answered(429, retry_after=text), 1) for text in ("7", "86400", "soon")] == [7.0, 300.0, 1.0]
