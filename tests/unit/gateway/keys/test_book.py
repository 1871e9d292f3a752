"""The keys of a running gateway follow their file."""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.gateway.auth import owners_of
from qserve.gateway.keys.book import KeyBook, LocalLedger, NamedKeys, check_model
from qserve.gateway.keys.editing import add_key, remove_key
from qserve.gateway.keys.entries import KeyEntry
from qserve.wire.errors import ApiError


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    add_key(tmp_path / "keys.yaml", KeyEntry("alice", sha256("of alice")))
    return tmp_path / "keys.yaml"


def test_a_key_is_known_by_its_text_and_by_its_owner(file: Path) -> None:
    book = KeyBook(file)
    alice = book.of_token(b"of alice")
    assert alice is not None and alice.name == "alice" and book.of_owner(alice.owner) is alice
    assert book.of_token(b"of bob") is None and book.of_owner("") is None


def test_changes_are_taken_and_told(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qserve.gateway")
    book = KeyBook(file)
    book.look()
    assert not caplog.records, "nothing has changed"
    add_key(file, KeyEntry("bob", sha256("of bob")))
    book.look()
    assert book.of_token(b"of bob") is not None and "2 keys (new: bob)" in caplog.text
    file.write_text(file.read_text() + "    tokens_per_day: 7\n")
    book.look()
    assert "(changed: bob)" in caplog.text
    remove_key(file, "alice")
    book.look()
    assert book.of_token(b"of alice") is None and "(removed: alice)" in caplog.text


def test_a_broken_file_changes_nothing_and_is_told_once(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    book, whole = KeyBook(file), file.read_text()
    for broken in ("keys: [", "keys: 3"):
        file.write_text(broken)
        book.look()
        book.look()
    file.unlink()
    book.look()
    assert book.of_token(b"of alice") is not None
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    file.write_text(whole.replace("alice", "alina"))
    book.look()
    alina = book.of_token(b"of alice")
    assert alina is not None and alina.name == "alina"


def test_a_start_without_a_file_of_keys_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't be read"):
        KeyBook(tmp_path / "none.yaml")


async def test_a_key_that_is_gone_begins_nothing(file: Path) -> None:
    book = KeyBook(file)
    ledger = LocalLedger(book, {})
    await ledger.begin("alice", 1)
    with pytest.raises(ApiError, match="'bob' was removed"):
        await ledger.begin("bob", 1)
    assert [row["name"] for row in await ledger.document(None)] == ["alice"]
    assert await ledger.document("bob") == []


def test_a_batch_may_be_older_than_the_file(file: Path) -> None:
    """Its lines come with its owner alone: the key may be gone, or of another kind."""
    book = KeyBook(file)
    alice = book.named("alice")
    assert alice is not None
    keys = NamedKeys(book, LocalLedger(book, {}), owners_of(["sk-plain"]))
    assert keys.of_request(alice.owner) is alice
    assert keys.of_request(*owners_of(["sk-plain"])) is None and keys.of_request("") is None
    remove_key(file, "alice")
    add_key(file, KeyEntry("late", sha256("late"), expires=dt.date(2026, 1, 1)))
    book.look()
    for owner, code in ((alice.owner, "invalid_api_key"), (sha256("late")[:32], "expired_api_key")):
        with pytest.raises(ApiError) as raised:
            keys.of_request(owner)
        assert (raised.value.status, raised.value.code) == (401, code)


def test_models_by_any_of_their_names() -> None:
    entry = KeyEntry("a", "a" * 64, ("demo", "adapter"))
    check_model(entry, ("org/Demo", "demo"))
    check_model(KeyEntry("b", "b" * 64), ("whatever",))
    with pytest.raises(ApiError, match="may not ask 'other'; it may ask demo, adapter") as raised:
        check_model(entry, ("other",))
    assert (raised.value.status, raised.value.code) == (403, "model_not_allowed")
