"""`qserve keys`: a key is shown once, its file says what it may do, and the record what it used."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qserve.cli.keys import command
from qserve.errors import QserveError, UsageError
from qserve.gateway.keys.entries import read_keys
from tests.unit.runs.kept import DIED, request, writer

DAY_MS = 86_400_000


def keys(*arguments: str, width: int = 80) -> Result:
    done = CliRunner().invoke(command, arguments, env={"COLUMNS": str(width)})
    if isinstance(done.exception, QserveError):
        raise done.exception
    return done


def test_a_key_is_printed_once_and_kept_as_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    limits = ("--model", "demo", "--tokens-per-day", "5", "--priority", "high", "--expires", "2027-06-30")
    done = keys("add", "alice", "--keys", str(file), *limits)
    key = done.stdout.strip()
    (entry,) = read_keys(file)
    assert entry.sha256 == hashlib.sha256(key.encode()).hexdigest() and key not in file.read_text()
    assert (entry.models, entry.tokens_per_day, entry.priority, str(entry.expires)) == (
        ("demo",),
        5,
        "high",
        "2027-06-30",
    )
    assert f"qserve up --model MODEL --keys {file}" in done.stderr


def test_the_list_and_what_is_taken_out(tmp_path: Path) -> None:
    file = ("--keys", str(tmp_path / "keys.yaml"))
    keys("add", "alice", "--tokens-per-day", "2000000", *file)
    keys("add", "bob", "--expires", "2026-01-01", *file)
    listed = keys("list", *file).stdout
    assert "2,000,000" in listed and "expired" in listed and "2026-01-01" in listed and "all" in listed
    assert max(map(len, listed.splitlines())) <= 80
    assert [one["name"] for one in json.loads(keys("list", "--json", *file).stdout)] == ["alice", "bob"]
    assert "removed alice" in keys("rm", "alice", *file).stdout
    with pytest.raises(UsageError, match="has no key 'alice'; it has bob"):
        keys("rm", "alice", *file)
    keys("rm", "bob", *file)
    assert "qserve keys add NAME" in keys("list", *file).stderr


@pytest.mark.parametrize("words", [("a b",), ("a", "--tokens-per-day", "0"), ("a", "--expires", "soon"), ("é",)])
def test_a_mistake_writes_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    file = tmp_path / "keys.yaml"
    done = CliRunner().invoke(command, ["add", *words, "--keys", str(file)])
    assert done.exit_code and not file.exists()


def test_usage_by_day_key_and_model(tmp_path: Path) -> None:
    now_ms = int(time.time() * 1000)
    today_ms = now_ms // DAY_MS * DAY_MS
    run = writer(tmp_path / "qserve")
    for began_ms, key in ((today_ms, "alice"), (today_ms, "alice"), (today_ms - 1, "alice"), (today_ms, "bob")):
        run.request(request(1, began_unix_ms=began_ms)._replace(key=key))
    run.request(request(2, DIED, today_ms)._replace(key="bob", prompt_tokens=None, completion_tokens=None))
    run.request(request(3, began_unix_ms=today_ms))  # without a name
    run.request(request(4, began_unix_ms=today_ms - 40 * DAY_MS)._replace(key="old"))
    run.close(0)
    state = ("--state-dir", str(tmp_path))
    rows = list(csv.DictReader(io.StringIO(keys("usage", "--csv", *state).stdout)))
    told = [(one["key"], *(int(one[name]) for name in ("num_requests", "num_refused"))) for one in rows]
    assert told == [("alice", 2, 0), ("bob", 2, 1), ("alice", 1, 0)]
    assert [(int(one["prompt_tokens"]), int(one["generated_tokens"])) for one in rows] == [(14, 22), (7, 23), (7, 11)]
    assert rows[0]["day"] == time.strftime("%Y-%m-%d", time.gmtime(today_ms / 1000)) > rows[2]["day"]
    table = keys("usage", "--days", "1", *state).stdout
    assert "alice" in table and rows[2]["day"] not in table and max(map(len, table.splitlines())) <= 80
    assert len(json.loads(keys("usage", "--days", "60", "--json", *state).stdout)) == 4
    assert "no key with a name" in keys("usage", "--state-dir", str(tmp_path / "none")).stderr
