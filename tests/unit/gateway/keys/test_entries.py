"""A file of keys: what it may say, and what is said of one that is wrong."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from qserve.errors import UsageError
from qserve.gateway.keys.entries import KeyEntry, entries_of, read_keys

ONE, TWO = "1" * 64, "2" * 64
WHOLE = f"""
# of the laboratory
keys:
  - name: alice
    sha256: '{ONE}'
    models: [demo, reward]
    requests_per_minute: 60
    tokens_per_minute: 100000
    tokens_per_day: 2000000
    priority: high
    expires: 2027-06-30
  - {{name: bob, sha256: '{TWO}'}}
"""


def test_everything_that_a_key_has() -> None:
    alice, bob = entries_of(WHOLE, "keys.yaml")
    day = dt.date(2027, 6, 30)
    assert alice == KeyEntry("alice", ONE, ("demo", "reward"), 60, 100_000, 2_000_000, "high", day)
    assert bob == KeyEntry("bob", TWO) and not bob.is_bounded and alice.is_bounded


@pytest.mark.parametrize("text", ["", "# nothing", "keys:", "keys: []"])
def test_a_file_may_have_no_key(text: str) -> None:
    assert entries_of(text, "keys.yaml") == ()


@pytest.mark.parametrize(
    "field", ["models: demo", "requests_per_minute: 1", "priority: background", "expires: 2027-01-01"]
)
def test_each_bound_counts(field: str) -> None:
    (entry,) = entries_of(f"keys:\n- name: a\n  sha256: '{ONE}'\n  {field}\n", "keys.yaml")
    assert entry.is_bounded


def test_the_last_day_is_whole() -> None:
    entry = KeyEntry("a", ONE, expires=dt.date(2027, 6, 30))
    end_s = dt.datetime(2027, 7, 1, tzinfo=dt.UTC).timestamp()
    assert not entry.has_expired(end_s - 1) and entry.has_expired(end_s)
    assert not KeyEntry("a", ONE).has_expired(1e12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: 3", "a list 'keys:'"),
        ("- name: a", "a list 'keys:'"),
        ("keys: []\nother: 1", "a list 'keys:'"),
        ("keys: [1]", "key 1 is not a mapping"),
        ("keys: [", "is not YAML: line 1"),
        ("keys: [{sha256: x}]", "'name' takes"),
        ("keys: [{name: 'a b', sha256: x}]", "'name' takes"),
        ("keys: [{name: 1.5, sha256: x}]", "'name' takes"),
        ("keys: [{name: a}]", "'sha256' takes the 64"),
        ("keys: [{name: a, sha256: sk-secret}]", "'sha256' takes the 64"),
        (f"keys: [{{name: a, sha256: '{ONE}', token_per_day: 1}}]", "did you mean 'tokens_per_day'"),
        (f"keys: [{{name: a, sha256: '{ONE}', 7: 1}}]", "has no field '7'; it takes name, sha256"),
        (f"keys: [{{name: a, sha256: '{ONE}', tokens_per_day: 0}}]", "'tokens_per_day' is '0'"),
        (f"keys: [{{name: a, sha256: '{ONE}', tokens_per_day: true}}]", "'tokens_per_day' is 'True'"),
        (f"keys: [{{name: a, sha256: '{ONE}', tokens_per_day: 1e6}}]", "'tokens_per_day' is '1e6'"),
        (f"keys: [{{name: a, sha256: '{ONE}', models: []}}]", "'models' takes names"),
        (f"keys: [{{name: a, sha256: '{ONE}', priority: urgent}}]", "one of high, normal, background"),
        (f"keys: [{{name: a, sha256: '{ONE}', expires: tomorrow}}]", "takes a date"),
        (f"keys: [{{name: a, sha256: '{ONE}', expires: 2027-06-30 10:00:00}}]", "takes a date"),
        (f"keys: [{{name: a, sha256: '{ONE}'}}, {{name: a, sha256: '{TWO}'}}]", "have the same name"),
        (f"keys: [{{name: a, sha256: '{ONE}'}}, {{name: b, sha256: '{ONE}'}}]", "have the same sha256"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        entries_of(text, "keys.yaml")
    assert said in str(raised.value) and "keys.yaml" in str(raised.value)
    assert "sk-secret" not in str(raised.value), "a key where its hash should be"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"can't be read: No such file.*qserve keys add NAME"):
        read_keys(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_keys(tmp_path / "bytes")
