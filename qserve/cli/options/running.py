"""Commands that speak to a service that runs: which one, and its answer or the reason of none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from qserve.cli.options.url import ServerUrl
from qserve.errors import UsageError

__all__ = ["asked", "server_options"]

Function = TypeVar("Function", bound=Callable[..., Any])
# A model that is to leave answers its requests first.
_TIMEOUT_S = 600.0


def server_options(function: Function) -> Function:
    key = click.option("--api-key", envvar="QSERVE_API_KEY", default="", help="API key of the server.")
    url = click.option("--url", type=ServerUrl(), help="Address of the service [the newest that runs here].")
    state = click.option(
        "--state-dir", type=click.Path(path_type=Path), envvar="QSERVE_STATE_DIR", help="[~/.local/state/qserve]"
    )
    return url(key(state(function)))


def _newest(state_dir: Path | None) -> str:
    from qserve.cli.chat.find import running_urls

    found = next(running_urls(state_dir), None)
    if found is None:
        raise UsageError("no service runs here; `qserve up MODEL` starts one, and --url names one elsewhere")
    return found


def asked(url: str | None, state_dir: Path | None, api_key: str, method: str, path: str) -> dict[str, Any]:
    """The document that the service answers. Raises UsageError with what is wrong."""
    from qserve.client.answer import Unreachable, is_error
    from qserve.client.http import ask

    address = (url or _newest(state_dir)).rstrip("/").removesuffix("/v1")
    try:
        answer = ask(method, f"{address}{path}", timeout_s=_TIMEOUT_S, api_key=api_key or None)
    except Unreachable as error:
        raise UsageError(f"no service answers at {address}: {error}") from None
    if is_error(answer.status):
        raise UsageError(f"{address} answered {answer.status}: {answer.message()}")
    document = answer.json()
    if not isinstance(document, dict):
        raise UsageError(f"{address} is no service of qserve: it answers {path} with something else")
    return document
