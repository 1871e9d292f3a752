"""What the coordinator keeps of requests of named keys, however their messages and their ends cross."""

from __future__ import annotations

from pathlib import Path

import pytest

from qserve.gateway.keys.book import KeyBook, LocalLedger
from qserve.gateway.keys.editing import add_key
from qserve.gateway.keys.entries import KeyEntry
from qserve.gateway.processes.key_spending import MemberSpending
from qserve.wire.errors import ApiError


@pytest.fixture
def ledger(tmp_path: Path) -> LocalLedger:
    add_key(tmp_path / "keys.yaml", KeyEntry("alice", "a" * 64, requests_per_minute=2))
    return LocalLedger(KeyBook(tmp_path / "keys.yaml"), {})


async def running(ledger: LocalLedger) -> int:
    (row,) = await ledger.document("alice")
    return int(row["running"])


async def test_the_end_of_a_process_ends_what_it_began(ledger: LocalLedger) -> None:
    spending = MemberSpending(ledger)
    await spending.begin("alice", 0, 10)
    await spending.begin("alice", 1, 10)
    spending.end("alice", 0, 3, 4)
    assert await running(ledger) == 1
    spending.leave()
    assert await running(ledger) == 0
    (row,) = await spending.document("alice")
    assert (row["prompt_tokens"], row["generated_tokens"]) == (3, 4)


async def test_a_client_that_leaves_first_begins_nothing(ledger: LocalLedger) -> None:
    spending = MemberSpending(ledger)
    spending.end("alice", 0, 0, 0)
    await spending.begin("alice", 0, 10)
    assert await running(ledger) == 0
    (row,) = await ledger.document("alice")
    assert row["requests"] == 0


async def test_one_that_was_refused_and_leaves_is_not_remembered(ledger: LocalLedger) -> None:
    spending = MemberSpending(ledger)
    for number in range(2):
        await spending.begin("alice", number, 10)
    with pytest.raises(ApiError, match="requests a minute"):
        await spending.begin("alice", 2, 10)
    spending.end("alice", 2, 0, 0)
    assert not spending._left
