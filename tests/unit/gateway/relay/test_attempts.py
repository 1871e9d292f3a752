"""When a request that failed is asked again, and what it ends with where it is not."""

from __future__ import annotations

from typing import Any

import pytest

from qserve.gateway.relay.attempts import Attempts
from qserve.gateway.routing.poison import MOST_KILLS
from qserve.wire.errors import ApiError

DIED = ApiError(502, "died", "worker_died")
UNREACHABLE = ApiError(503, "can't be reached", "worker_unreachable")
BUSY = ApiError(503, "not yet", "worker_not_ready")


class Replicas:
    """What `Attempts` asks of them."""

    def __init__(self, is_single: bool, refuses: bool = False) -> None:
        self.is_single = is_single
        self._refuses = refuses
        self.is_ready = self.may_come = True

    async def died(self, request: Any, life: Any) -> bool:
        return self._refuses

    def has_ready(self, tried: Any) -> bool:
        return self.is_ready

    def may_have_ready(self) -> bool:
        return self.may_come


def of(is_single: bool = False, refuses: bool = False, wait_s: float = 60.0) -> tuple[Attempts, Replicas]:
    replicas = Replicas(is_single, refuses)
    return Attempts(replicas, None, wait_s), replicas  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "is_single", "has_begun", "may_wait", "is_asked_again"),
    [
        (DIED, False, False, False, True),  # another replica
        (UNREACHABLE, False, False, False, True),
        (DIED, False, True, True, True),
        (DIED, False, True, False, False),  # the client has a part, and nobody knows the rest
        (DIED, True, False, True, True),  # its next life
        (DIED, True, False, False, False),
        (ApiError(502, "no", "worker_error"), False, False, True, False),
        (ApiError(502, "no", "not_continued"), False, True, True, False),
    ],
)
async def test_who_is_asked_again(
    error: ApiError, is_single: bool, has_begun: bool, may_wait: bool, is_asked_again: bool
) -> None:
    attempts, _ = of(is_single)
    end = await attempts.failed(error, ("chat", 0), has_begun=has_begun, may_wait=may_wait)
    assert end is (None if is_asked_again else error)


async def test_a_request_that_ends_workers_is_refused_before_it_began_and_ends_after() -> None:
    for has_begun, code in ((False, "request_ended_workers"), (True, "worker_died")):
        attempts, _ = of(refuses=True)
        end = await attempts.failed(DIED, ("chat", 0), has_begun=has_begun, may_wait=True)
        assert end is not None and end.code == code


async def test_no_request_has_workers_for_ever() -> None:
    attempts, _ = of()
    ends = [await attempts.failed(DIED, ("chat", life), has_begun=True, may_wait=True) for life in range(MOST_KILLS)]
    assert ends == [None] * (MOST_KILLS - 1) + [DIED]


async def test_where_no_slot_is_to_be_had_only_one_that_waits_looks_again() -> None:
    attempts, _ = of()
    assert await attempts.failed(BUSY, None, has_begun=False, may_wait=True) is BUSY
    await attempts.failed(DIED, ("chat", 0), has_begun=True, may_wait=True)
    assert await attempts.failed(BUSY, None, has_begun=True, may_wait=True) is None
    refused = ApiError(400, "too long", "context_length_exceeded")
    assert await attempts.failed(refused, None, has_begun=True, may_wait=True) is refused


@pytest.mark.parametrize(("wait_s", "may_come"), [(0.0, True), (60.0, False)])
async def test_it_waits_for_one_that_may_come_and_no_longer_than_told(wait_s: float, may_come: bool) -> None:
    attempts, replicas = of(wait_s=wait_s)
    await attempts.until_ready()  # it waits for none yet
    await attempts.failed(DIED, ("chat", 0), has_begun=True, may_wait=True)
    await attempts.until_ready()
    replicas.is_ready, replicas.may_come = False, may_come
    with pytest.raises(ApiError) as ended:
        await attempts.until_ready()
    assert ended.value is DIED
