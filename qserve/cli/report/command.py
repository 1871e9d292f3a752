"""`qserve report`: a run's planned and measured figures as HTML, Markdown, JSON or text; or those of a live service."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

import click

from qserve.cli.options.command import Command
from qserve.cli.options.url import ServerUrl
from qserve.cli.stores import run_store
from qserve.errors import UsageError

__all__ = ["command"]


@click.command("report", cls=Command)
@click.argument("run", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "html", "md", "json"]),
    help="Text, one self-contained page, Markdown, or JSON [text].",
)
@click.option("--full", is_flag=True, help="All tables on the terminal [a summary].")
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="File [standard output].")
@click.option("--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]")
@click.option("--url", type=ServerUrl(), help="Report on the running service at this address.")
@click.option("--api-key", envvar="QSERVE_API_KEY", help="API key of the server.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json; with --url, its answer as it is.")
def command(
    run: str | None,
    form: Literal["text", "html", "md", "json"] | None,
    full: bool,
    output: Path | None,
    state_dir: Path | None,
    url: str | None,
    api_key: str | None,
    as_json: bool,
) -> None:
    """Report on a run: memory and latency, planned and measured; results; faults. The newest run, or RUN.

    On the terminal a summary; --full prints all of it, as do the other formats.

    RUN is an id shown by `qserve runs`, or its beginning. A running service shows its report at /report.

    \b
    qserve report
    qserve report --full
    qserve report --format html --output report.html
    qserve report 20261121-2240 --format md
    qserve report --url http://127.0.0.1:9000

    Exit status: 0, or 2 if there is no such run or the service does not answer.
    """
    form = "json" if as_json else form
    if url is not None:
        if run is not None or output is not None or form in ("html", "md"):
            raise UsageError(
                "--url prints the report of a running service on the terminal, or as JSON with --json; its page is at "
                f"{url.rstrip('/')}/report. For a stored run leave --url out"
            )
        from qserve.cli.report.live import show_live

        show_live(url, api_key, as_json=form == "json", full=full)
        return
    to_file = output is not None
    _write(_written(state_dir, run, form or _by_name(output), full=full, to_file=to_file), output)


def _by_name(output: Path | None) -> str | None:
    """The format that a file's name implies."""
    kinds = {".html": "html", ".htm": "html", ".md": "md", ".json": "json", ".txt": "text"}
    if output is None:
        return None
    if output.suffix not in kinds:
        raise UsageError(f"--output {output}: give its format with --format, or name it *.html, *.md, *.json or *.txt")
    return kinds[output.suffix]


def _written(state_dir: Path | None, name: str | None, form: str | None, *, full: bool, to_file: bool) -> str:
    from qserve.report import read_report, to_html, to_json, to_markdown

    store = run_store(state_dir)
    report = read_report(store, store.run(name))
    if form == "html":
        return to_html(report)
    if form == "md":
        return to_markdown(report)
    if form == "json":
        return json.dumps(to_json(report), indent=2, ensure_ascii=False) + "\n"
    from qserve.cli.report.show import to_summary, to_terminal

    return to_terminal(report, to_file=to_file) if full else to_summary(report, to_file=to_file)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        _to_stdout(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--output {output} can't be written: {error.strerror}; name another file") from error
    click.echo(f"written to {output}", err=True)


def _to_stdout(text: str) -> None:
    stream: Any = sys.stdout
    stream.write(text)
    stream.flush()
