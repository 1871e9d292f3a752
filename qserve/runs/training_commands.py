"""The commands that come after a training run: they serve what was trained, load an adapter into a service that runs,
or resume a run that was stopped.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["load_command", "resume_command", "serve_command"]

_MASKED = "***"
"""In the place of a secret in a command that was stored (records.py: StoredRun)."""


def serve_command(method: str, output: str) -> str:
    """Of the model that a run of `method` saved in the folder `output`; of an adapter, its base with room for it."""
    adapter = None if method == "reward" else _adapter(output)
    if adapter is not None:
        rank = max(8, 1 << (int(adapter.get("r", 16)) - 1).bit_length())
        base = shlex.quote(str(adapter.get("base_model_name_or_path") or "BASE"))
        return f"qserve up --model {base} --engine vllm --enable-lora --max-lora-rank {rank}"
    return f"qserve up {'--reward' if method == 'reward' else '--model'} {shlex.quote(output)}"


def load_command(method: str, output: str) -> str | None:
    """Loads the adapter in `output` into a service that runs, also in the place of an earlier one; None for others."""
    if method == "reward" or _adapter(output) is None:
        return None
    folder = Path(output).resolve()
    body = json.dumps({"name": folder.name, "path": str(folder), "load_inplace": True})
    url = "http://127.0.0.1:8000/v1/qserve/adapters"
    return f"curl {url} -H 'content-type: application/json' -d {shlex.quote(body)}"


def _adapter(output: str) -> Mapping[str, Any] | None:
    """adapter_config.json of a folder with an adapter alone."""
    file = Path(output) / "adapter_config.json"
    return json.loads(file.read_text()) if file.is_file() else None


def resume_command(output: Path, words: Sequence[str]) -> str:
    """`words` are what was typed behind `qserve`; with the folder and --resume, and without flags whose secret is
    masked: the mask would be taken for the secret.
    """
    kept = [word for word in _unmasked(words) if word != "--resume"]
    named = any(word.partition("=")[0] == "--output" for word in kept)
    return shlex.join(["qserve", *kept, *([] if named else ["--output", str(output)]), "--resume"])


def _unmasked(words: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for word in words:
        if _MASKED not in word:
            kept.append(word)
        elif not word.startswith("--") and kept and kept[-1].startswith("--"):
            kept.pop()  # the flag whose value it is
    return kept
