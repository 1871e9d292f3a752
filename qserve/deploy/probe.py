"""Readiness checks as a program, for containers and systemd."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from qserve.client.answer import Unreachable, is_error
from qserve.client.http import ask
from qserve.deploy.service import PORT_INSIDE

__all__ = ["READY_PROBE", "wait_until_ready"]

_PAUSE_S = 2.0
_TIMEOUT_S = 5
# The gateway answers within seconds of its start. Whom nobody answers for so long has ended.
_NOBODY_S = 60.0

# No shell and nothing that the image lacks; /ready wants the key, which only the container's environment holds.
READY_PROBE = (
    "python3",
    "-c",
    "import os, urllib.request as web\n"
    'key = {"Authorization": "Bearer " + os.environ["QSERVE_API_KEY"].split()[0]}\n'
    f'web.urlopen(web.Request("http://127.0.0.1:{PORT_INSIDE}/ready", headers=key), timeout=4)\n',
)


def wait_until_ready(url: str, key_file: Path | None, nobody_s: float = _NOBODY_S, pause_s: float = _PAUSE_S) -> bool:
    """Asks `url`/ready until it says yes; False where nobody listens for `nobody_s`, or the key is refused.

    systemd bounds the whole (TimeoutStartSec): a first start may fetch the weights for an hour.
    """
    heard_s = time.monotonic()
    while time.monotonic() - heard_s < nobody_s:
        try:
            status = ask("GET", f"{url}/ready", api_key=_key(key_file), timeout_s=_TIMEOUT_S).status
        except Unreachable:
            pass
        else:
            if status == 401 or not is_error(status):
                return status != 401
            heard_s = time.monotonic()
        time.sleep(pause_s)
    return False


def _key(key_file: Path | None) -> str | None:
    if key_file is None:
        return None
    lines = (line.strip() for line in key_file.read_text().splitlines())
    return next(line for line in lines if line and not line.startswith("#"))


if __name__ == "__main__":
    address, *files = sys.argv[1:]
    sys.exit(0 if wait_until_ready(address, Path(files[0]) if files else None) else 1)
