"""`qserve ui`: the web UI for a running server, qserve's or any other OpenAI-compatible one."""

from __future__ import annotations

import click

from qserve.cli.options.command import Command
from qserve.cli.options.url import ServerUrl
from qserve.errors import UsageError

__all__ = ["command"]


@click.command("ui", cls=Command)
@click.option(
    "--url", type=ServerUrl(), default="http://127.0.0.1:8000", show_default=True, help="Address of the server."
)
@click.option("--api-key", envvar="QSERVE_API_KEY", default="", help="API key of the server.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the page: this machine only.")
@click.option("--port", type=click.IntRange(0, 65535), default=7860, show_default=True, help="0 takes a free one.")
def command(url: str, api_key: str, host: str, port: int) -> None:
    """Open the web UI for a running server: chat, scores, memory and latency.

    \b
    qserve ui
    qserve ui --url http://gpu-box:8000 --api-key $KEY --port 7861

    `qserve up` serves the same pages at its own address, behind its own sign-in. Pages that the server does not
    support are hidden. Exit status: 2 bad input, 4 the port is in use.
    """
    from qserve.supervisor.ports import bind, url_host

    _check(host)
    with bind(host, port) as listening:
        from qserve.ui.process.local_server import check_server, serve
        from qserve.ui.settings import UISettings

        settings = UISettings(url=url, api_key=api_key)
        click.echo(f"http://{url_host(host)}:{listening.getsockname()[1]} shows {url}; Ctrl-C ends it")
        if problem := check_server(settings):
            click.echo(f"note: {problem}; the page keeps trying", err=True)
        serve(settings, listening)


def _check(host: str) -> None:
    from qserve.supervisor.ports import is_loopback

    if not is_loopback(host):
        raise UsageError(
            f"--host {host}: this page has no sign-in and uses --api-key for everyone who opens it, so it is for this "
            f"machine only; `qserve up --host {host} --api-key …` serves the same pages to others"
        )
