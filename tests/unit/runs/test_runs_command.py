"""`qserve runs`: what a person reads, what a program reads, and mistakes as a sentence."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from qserve.cli.command_line import without_secrets
from qserve.cli.runs.command import command
from qserve.cli.runs.show import duration_text
from qserve.errors import QserveError, UsageError
from qserve.planner.calibration import Residual
from qserve.runs.retention import Retention
from qserve.runs.writer import RunWriter
from tests.unit.runs.kept import new_run, stored, writer


def runs(folder: Path, *arguments: str, width: int = 200) -> Result:
    """The command over the store in `folder`, which `--state-dir` names from above. Raises what it raises."""
    done = CliRunner().invoke(command, [*arguments, "--state-dir", str(folder)], env={"COLUMNS": str(width)})
    if isinstance(done.exception, QserveError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_the_list_names_each_run_with_what_matters(tmp_path: Path) -> None:
    stored(tmp_path / "qserve")
    output = runs(tmp_path).output
    for word in ("20261121-120000-1", "ended", "demo", "bf16", "vllm 0.32.0", "101", "runs.sqlite3"):
        assert word in output, word


def test_the_list_fits_a_narrow_terminal_and_says_what_a_run_was_for(tmp_path: Path) -> None:
    stored(tmp_path / "qserve")
    RunWriter(tmp_path / "qserve", new_run(tmp_path / "qserve", "2-compared", "compare"), Retention()).close(0)
    output = runs(tmp_path, width=80).output
    lines = output.splitlines()
    assert lines[0].split()[-2:] == ["errors", "models"]
    (mine,) = (line for line in lines if line.startswith("20261121-120000-1 "))
    assert mine.endswith(" demo, 1 restart") and "…" not in output
    assert "for qserve compare" in runs(tmp_path).output


def test_residuals_are_the_last_of_each_term(tmp_path: Path) -> None:
    """Thirty starts of one model are not thirty tables."""
    for name in ("1", "2"):
        run = writer(tmp_path / "qserve", name)
        about = ("vllm", "0.32.0", "card", False, "a shape", "a step")
        run.learn("chat", [Residual(*about, "weights", 1000, 900 + int(name), name)])
        run.close(0)
    output = runs(tmp_path, "residuals", width=80).output
    assert output.count("a shape") == 1 and "run 2" in output
    assert "-9.80 %" in output and "Older measurements of the same terms: 1" in output
    assert len(json.loads(runs(tmp_path, "residuals", "--json").output)) == 2


def test_one_run_in_full(tmp_path: Path) -> None:
    stored(tmp_path / "qserve")
    output = runs(tmp_path, "show").output
    for word in (
        "qserve up --model demo",
        "loading weights 1.5 s",
        "99 B",
        "1,024",
        "1,000",
        "worker_died",
        "killed by SIGKILL",
        "TTFT",
    ):
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
        (["delete"], "not both"),
        (["delete", "20261121", "--older-than", "1d"], "not both"),
        (["delete", "--older-than", "yesterday"], "12h, 30d, 8w"),
    ],
)
def test_a_mistake_is_a_sentence(tmp_path: Path, arguments: list[str], words: str) -> None:
    stored(tmp_path / "qserve", 1)
    with pytest.raises(UsageError, match=words):
        runs(tmp_path, *arguments)


def test_an_empty_store_is_no_error_and_none_is_made(tmp_path: Path) -> None:
    """A list of nothing is one; what asks for a run says how one comes about."""
    for arguments, words, document in (
        ([], "No runs yet.\nNext   qserve up --model demo", {"object": "list", "data": []}),
        (["residuals"], "Nothing was measured yet.\nNext   qserve up --model demo", []),
        (["delete", "--older-than", "1d"], "deleted 0 runs", {"deleted": []}),
    ):
        done = runs(tmp_path, *arguments)
        assert (done.exit_code, done.output.rstrip()) == (0, words)
        assert json.loads(runs(tmp_path, *arguments, "--json").output) == document
    for arguments in (["show"], ["show", "1"], ["compare", "1", "2"], ["delete", "1"]):
        with pytest.raises(UsageError, match=r"no runs yet in .*; start one with `qserve up`"):
            runs(tmp_path, *arguments)
    with pytest.raises(UsageError, match="12h, 30d, 8w"):
        runs(tmp_path, "delete", "--older-than", "1 year")
    assert list(tmp_path.iterdir()) == []
    stored(tmp_path / "qserve", 1, "a")
    runs(tmp_path, "delete", "a")
    assert runs(tmp_path).output.startswith("No runs yet.")


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (["--api-key", "s3", "--port", "1"], ("--api-key", "***", "--port", "1")),
        (["--api-key=s3"], ("--api-key=***",)),
        (["--engine-args", "--seed 7 --hf-token s3 --lora x"], ("--engine-args", "--seed 7 --hf-token *** --lora x")),
        (["--max-num-seqs", "7"], ("--max-num-seqs", "7")),
        (["--step-token", "<extra_0>"], ("--step-token", "<extra_0>")),
    ],
)
def test_secrets_are_not_kept(written: list[str], kept: tuple[str, ...]) -> None:
    assert without_secrets(written) == kept


def test_durations_for_people() -> None:
    assert [duration_text(s) for s in (8.2, 727, 3900, 90_000 * 2)] == ["8 s", "12 min 07 s", "1 h 05 min", "2 d 2 h"]
