"""`qserve runs`: what a person reads, what a program reads, and mistakes as a sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qserve.cli.recording import without_secrets
from qserve.cli.runs import command
from qserve.cli.show_runs import lasting
from qserve.errors import QserveError, UsageError
from tests.unit.runs.kept import stored


def runs(folder: Path, *arguments: str) -> Result:
    """The command over the store in `folder`, which `--state-dir` names from above. Raises what it raises."""
    done = CliRunner().invoke(command, [*arguments, "--state-dir", str(folder)], env={"COLUMNS": "200"})
    if isinstance(done.exception, QserveError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_the_list_names_each_run_with_what_matters(tmp_path: Path) -> None:
    stored(tmp_path / "qserve")
    output = runs(tmp_path).output
    for word in ("20261121-120000-1", "ended", "demo", "bf16", "vllm 0.32.0", "101", "runs.sqlite3"):
        assert word in output, word


def test_one_run_in_full(tmp_path: Path) -> None:
    stored(tmp_path / "qserve")
    output = runs(tmp_path, "show").output
    for word in ("qserve up --model demo", "loading weights 1.5 s", "99 B", "1,024", "1,000", "worker_died",
                 "killed by SIGKILL", "TTFT"):  # fmt: skip
        assert word in output, word


def test_two_runs_side_by_side(tmp_path: Path) -> None:
    stored(tmp_path / "qserve", 10, "a")
    stored(tmp_path / "qserve", 20, "b")
    rows = {
        (row["worker"], row["name"]): row for row in json.loads(runs(tmp_path, "compare", "a", "b", "--json").output)
    }
    assert (rows["chat", "requests"]["first"], rows["chat", "requests"]["second"]) == (11, 21)
    assert "+90.9 %" in runs(tmp_path, "compare", "a", "b").output


def test_deleting_by_name_and_by_age(tmp_path: Path) -> None:
    store = stored(tmp_path / "qserve", 1, "a")
    stored(tmp_path / "qserve", 1, "b")
    assert "deleted 1 runs: a" in runs(tmp_path, "delete", "a").output
    assert "deleted 0" in runs(tmp_path, "delete", "--older-than", "1h").output
    with store.connection() as connection:
        connection.execute("UPDATE run SET last_seen_unix_s = ?", [time.time() - 7200])
    assert json.loads(runs(tmp_path, "delete", "--older-than", "1h", "--json").output) == {"deleted": ["b"]}
    assert store.runs() == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "1999"], "qserve runs"),
        (["delete"], "one of the two"),
        (["delete", "20261121", "--older-than", "1d"], "one of the two"),
        (["delete", "--older-than", "yesterday"], "12h, 30d, 8w"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    stored(tmp_path / "qserve", 1)
    with pytest.raises(UsageError, match=words):
        runs(tmp_path, *arguments)


def test_without_a_store_none_is_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qserve up"):
        runs(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (["--api-key", "s3", "--port", "1"], ("--api-key", "***", "--port", "1")),
        (["--api-key=s3"], ("--api-key=***",)),
        (["--engine-args", "--seed 7 --hf-token s3 --lora x"], ("--engine-args", "--seed 7 --hf-token *** --lora x")),
        (["--max-num-seqs", "7"], ("--max-num-seqs", "7")),
    ],
)
def test_secrets_are_not_kept(written: list[str], kept: tuple[str, ...]) -> None:
    assert without_secrets(written) == kept


def test_durations_for_people() -> None:
    assert [lasting(s) for s in (8.2, 727, 3900, 90_000 * 2)] == ["8 s", "12 min 07 s", "1 h 05 min", "2 d 2 h"]
