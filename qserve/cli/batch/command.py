"""`qserve batch`: the requests of a file, answered in the background."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qserve.cli.batch.document import batch_json
from qserve.cli.batch.endpoints import ENDPOINTS, WINDOW
from qserve.cli.interrupted import INTERRUPTED
from qserve.cli.options.command import Command
from qserve.cli.options.json_output import add_json_flag, print_json
from qserve.cli.options.url import ServerUrl
from qserve.cli.progress import progress_line
from qserve.cli.writable import check_file_writable
from qserve.encodings import check_text_file
from qserve.errors import QserveError, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from qserve.cli.batch.client import BatchServer

__all__ = ["command"]

_LOOK_S = 1.0
_ENDED = ("completed", "failed", "expired", "cancelled")


class _Window(click.ParamType):  # type: ignore[type-arg]
    """A time as servers take it: 30m, 24h, 7d."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if WINDOW.fullmatch(str(value)) is None:
            self.fail(f"{value!r} is not a duration; write for example 30m, 24h or 7d", param, ctx)
        return str(value)


@click.command("batch", cls=Command)
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--url", type=ServerUrl(), default="http://127.0.0.1:8000", show_default=True, help="The server to ask.")
@click.option("--api-key", envvar=["QSERVE_API_KEY", "OPENAI_API_KEY"], default="", help="API key of the server.")
@click.option(
    "--endpoint",
    type=click.Choice(ENDPOINTS),
    metavar="ROUTE",
    help="Route of the requests [the `url` of the first line].",
)
@click.option(
    "--completion-window",
    type=_Window(),
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
@add_json_flag
def command(
    file: Path | None,
    url: str,
    api_key: str,
    endpoint: str | None,
    completion_window: str,
    output: Path | None,
    errors: Path | None,
    resume: str | None,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Answer a file of requests in the background, behind all other clients, and write the results.

    FILE holds one request per line, as OpenAI's batches do: {"custom_id", "method": "POST", "url", "body"}.

    \b
    qserve batch questions.jsonl
    qserve batch questions.jsonl --output answers.jsonl --url http://gpu-box:8000
    qserve batch questions.jsonl --resume batch_5f0c…

    Results are in the order of FILE. The server continues when this command ends (also by Ctrl-C) and after a crash;
    --resume waits for the batch again (without FILE, in the server's order). Exit status: 0 every request was answered,
    1 some were not or the server can't be reached, 2 bad input, 130 after Ctrl-C.
    """
    if file is None and resume is None:
        raise UsageError("give FILE to start a batch, or --resume BATCH_ID to wait for one")
    if file is None and output is None and not no_wait:
        raise UsageError("--resume needs FILE or --output: where the answers go")
    if file is not None:
        check_text_file(file, "a file with a request a line (see `qserve batch --help`)")
    targets = _targets(file, output, errors)
    for target in () if no_wait else targets or ():
        check_file_writable(target)
    from qserve.cli.batch.client import BatchServer
    from qserve.terminal.console import console_of

    server, console = BatchServer(url.rstrip("/").removesuffix("/v1"), api_key), console_of(stderr=True)
    if resume is not None:
        batch = server.batch(resume)
    else:
        assert file is not None, "which was refused without --resume"
        batch = _started(server, console, file, endpoint, completion_window)
    if no_wait:
        if as_json:
            print_json(batch_json(batch, {}))
        else:
            click.echo(batch["id"])
        return
    assert targets is not None, "of --resume without FILE and --output, which was refused"
    again = f"To wait for it again: {_again(server.url, batch['id'], file, targets)}"
    try:
        batch = _waited(server, batch)
        written = _written(server, batch, console, file, targets)
    except KeyboardInterrupt:
        console.print(f"The server continues the batch. {again}", soft_wrap=True)
        sys.exit(INTERRUPTED)
    except (QserveError, OSError) as error:
        if not isinstance(error, UsageError):
            console.print(f"The server keeps the batch and its answers. {again}", soft_wrap=True)
        raise
    if as_json:
        print_json(batch_json(batch, written))
    sys.exit(int(batch["status"] != "completed" or batch["request_counts"]["failed"] > 0))


def _targets(file: Path | None, output: Path | None, errors: Path | None) -> tuple[Path, Path] | None:
    """Where answers and failed requests are written; None where --resume has no place for them."""
    base = output or file
    if base is None:
        return None
    return output or base.with_suffix(".results.jsonl"), errors or base.with_suffix(".errors.jsonl")


def _started(server: BatchServer, console: Console, file: Path, endpoint: str | None, window: str) -> dict[str, Any]:
    """Send the file and start its batch; returns it."""
    from qserve.cli.batch.results import endpoint_of

    path = endpoint or endpoint_of(file)
    console.print(f"sending {file} …", soft_wrap=True)
    server.check()
    batch = server.create(server.upload(file), path, window)
    console.print(f"{batch['id']} started on {server.url}")
    return batch


def _again(url: str, batch_id: str, file: Path | None, targets: tuple[Path, Path]) -> str:
    """The command that waits for the batch and writes what this one would have written."""
    output, errors = map(str, targets)
    words = ["qserve", "batch", *([] if file is None else [str(file)])]
    return shlex.join([*words, "--url", url, "--resume", batch_id, "--output", output, "--errors", errors])


def _waited(server: BatchServer, batch: dict[str, Any]) -> dict[str, Any]:
    """Wait for the batch; returns it when it has ended."""
    with progress_line() as line:
        status = ""
        while batch["status"] not in _ENDED:
            if batch["status"] != status:
                status = batch["status"]
                line.phase(f"batch {status.replace('_', ' ')}")
            counts = batch["request_counts"]
            if counts["total"]:
                line.count(counts["completed"] + counts["failed"], counts["total"])
            time.sleep(_LOOK_S)
            batch = server.batch(batch["id"])
    return batch


def _written(
    server: BatchServer, batch: dict[str, Any], console: Console, file: Path | None, targets: tuple[Path, Path]
) -> dict[str, Path]:
    """Write the results and tell of them; returns the files by their kind."""
    from qserve.cli.batch.results import write_results

    if batch["status"] == "failed":
        lines = [
            f"line {one['line']}: {one['message']}" if one["line"] else one["message"] for one in _errors_of(batch)
        ]
        raise UsageError("\n  ".join(["the batch can't be run:", *lines[:10]]))
    written = {}
    for kind, target in zip(("output", "error"), targets, strict=True):
        if batch[f"{kind}_file_id"] is not None:
            write_results(server, batch[f"{kind}_file_id"], target, file)
            written[kind] = target
    counts = batch["request_counts"]
    console.print(f"{batch['status']}: {counts['completed']:,} of {counts['total']:,} requests answered")
    for kind, name in (("output", "Answers"), ("error", "Errors ")):
        if kind in written:
            console.print(f"{name} {written[kind]}", soft_wrap=True)
    return written


def _errors_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return (batch.get("errors") or {}).get("data") or []
