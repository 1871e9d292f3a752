"""`qserve batch`: the requests of a file, answered in the background."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.options.command import Command
from qserve.cli.options.url import ServerUrl
from qserve.encodings import check_text_file
from qserve.errors import QserveError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from qserve.cli.batch.client import BatchServer

__all__ = ["command"]

_LOOK_S = 1.0
_SAY_EVERY_S = 30.0
_INTERRUPTED = 130
_ENDED = ("completed", "failed", "expired", "cancelled")


@click.command("batch", cls=Command)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--url", type=ServerUrl(), default="http://127.0.0.1:8000", show_default=True, help="The server to ask.")
@click.option("--api-key", envvar=["QSERVE_API_KEY", "OPENAI_API_KEY"], default="", help="API key of the server.")
@click.option("--endpoint", help="Route of the requests [the `url` of the first line].")
@click.option(
    "--completion-window",
    default="24h",
    show_default=True,
    help="Time after which unanswered requests expire: 30m, 24h, 7d.",
)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File for answers [FILE.results.jsonl]."
)
@click.option(
    "--errors", type=click.Path(dir_okay=False, path_type=Path), help="File for failed requests [FILE.errors.jsonl]."
)
@click.option("--resume", metavar="BATCH_ID", help="Wait for a batch that was started before.")
@click.option("--no-wait", is_flag=True, help="Start the batch, print its id, and exit.")
def command(
    file: Path | None, url: str, api_key: str, endpoint: str | None, completion_window: str, output: Path | None,
    errors: Path | None, resume: str | None, no_wait: bool,
) -> None:  # fmt: skip
    """Answer a file of requests in the background, behind all other clients, and write the results.

    FILE holds one request per line, as OpenAI's batches do: {"custom_id", "method": "POST", "url", "body"}.

    \b
    qserve batch questions.jsonl
    qserve batch questions.jsonl --output answers.jsonl --url http://gpu-box:8000
    qserve batch --resume batch_5f0c… --output answers.jsonl

    Results are in the order of FILE. The server continues when this command ends (also by Ctrl-C) and after a crash;
    --resume waits for the batch again. Exit status: 0 every request was answered, 1 some were not or the server can't
    be reached, 2 bad input, 130 after Ctrl-C.
    """  # fmt: skip
    if (file is None) == (resume is None):
        raise UsageError("give FILE, to begin a batch, or --resume BATCH_ID, to wait for one")
    if file is None and output is None and not no_wait:
        raise UsageError("--resume needs --output: where the answers go")
    if file is not None:
        check_text_file(file, "a file with a request a line (see `qserve batch --help`)")
    _check_folders(output, errors)
    from qserve.cli.batch.client import BatchServer
    from qserve.cli.batch.results import endpoint_of
    from qserve.cli.terminal import console_of

    server, console = BatchServer(url.rstrip("/").removesuffix("/v1"), api_key), console_of(stderr=True)
    if file is not None:
        path = endpoint or endpoint_of(file)
        server.check()
        batch = server.create(server.upload(file), path, completion_window)
        console.print(f"{batch['id']} was begun on {server.url}")
    else:
        batch = server.batch(str(resume))
    if no_wait:
        click.echo(batch["id"])
        return
    try:
        batch = _waited(server, batch, console)
        status = _written(server, batch, console, file, output, errors)
    except KeyboardInterrupt:
        console.print(f"it goes on; {_again(batch)}", soft_wrap=True)
        sys.exit(_INTERRUPTED)
    except (QserveError, OSError) as error:
        if not isinstance(error, UsageError):
            console.print(f"nothing of the batch is lost; {_again(batch)}", soft_wrap=True)
        raise
    sys.exit(status)


def _again(batch: dict[str, Any]) -> str:
    return f"wait again with: qserve batch --resume {batch['id']} --output FILE"


def _check_folders(*files: Path | None) -> None:
    """Refuse output files that can't be written, before anything is sent."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"{file}: there is no folder {file.parent}; make it first, or name another file")


def _waited(server: BatchServer, batch: dict[str, Any], console: Console) -> dict[str, Any]:
    """Wait for the batch, with its progress on the screen; returns it when it has ended."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said_s = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(batch["status"], total=None)
        while batch["status"] not in _ENDED:
            time.sleep(_LOOK_S)
            batch = server.batch(batch["id"])
            counts = batch["request_counts"]
            num_done = counts["completed"] + counts["failed"]
            total = counts["total"] or None
            progress.update(task, description=batch["status"], total=total, completed=num_done)
            if not console.is_terminal and time.monotonic() - said_s > _SAY_EVERY_S:
                said_s = time.monotonic()
                console.print(f"{batch['status']}: {num_done} of {total or '?'}")
    return batch


def _written(
    server: BatchServer, batch: dict[str, Any], console: Console, file: Path | None, output: Path | None,
    errors: Path | None,
) -> int:  # fmt: skip
    """Write the results and report them; returns the exit status."""
    from qserve.cli.batch.results import write_results

    if batch["status"] == "failed":
        lines = [
            f"line {one['line']}: {one['message']}" if one["line"] else one["message"] for one in _errors_of(batch)
        ]
        raise UsageError("\n  ".join(["the batch can't be run:", *lines[:10]]))
    base = output or file
    assert base is not None, "one of the two was given"
    output = output or base.with_suffix(".results.jsonl")
    errors = errors or base.with_suffix(".errors.jsonl")
    for file_id, target in ((batch["output_file_id"], output), (batch["error_file_id"], errors)):
        if file_id is not None:
            write_results(server, file_id, target, file)
            console.print(f"{target}", soft_wrap=True)
    counts = batch["request_counts"]
    failed = f", {counts['failed']} were not: see {errors}" if counts["failed"] else ""
    console.print(f"{batch['status']}: {counts['completed']} of {counts['total']} answered{failed}", soft_wrap=True)
    return int(batch["status"] != "completed" or counts["failed"] > 0)


def _errors_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return (batch.get("errors") or {}).get("data") or []
