"""The server that the peers' tests ask: `qserve up` with the demo models, each by the name of its folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.servers import Server, free_port, running, wait_ready
from qserve.demo import chat_model_path, reward_model_path

__all__ = ["started"]


@contextlib.contextmanager
def started(engine: str, folder: Path, url: str | None) -> Iterator[str]:
    """The address of a server with the demo models: `url`, if there is one, or of one that is started for this."""
    if url is not None:
        yield url
        return
    folder.mkdir(exist_ok=True)
    server, log = _demo(engine, folder / "state"), folder / "log"
    with running(server, log) as process:
        asyncio.run(wait_ready(server, process, log))
        yield server.url


def _stretched_demo(folder: Path, positions: int) -> Path:
    """A copy of the demo that says that it has more positions than it was trained on."""
    shutil.copytree(chat_model_path(), folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": positions}
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return folder


def _demo(engine: str, state: Path) -> Server:
    """`qserve up` with the demo models, each by the name of its folder, where a test finds its tokenizer.

    Half of SGLang's tests of tools ask for 2,048 tokens beside their prompt, which is the demo's whole context.
    """
    port, model = free_port(), _stretched_demo(state.parent / "chat", 8192)
    return Server(
        engine,
        [
            str(Path(sys.executable).parent / "qserve"),
            "up",
            "--model",
            str(model),
            "--reward",
            "demo",
            "--engine",
            engine,
            "--served-model-name",
            str(chat_model_path()),
            "--served-reward-name",
            str(reward_model_path()),
            "--port",
            str(port),
            "--max-model-len",
            "8192",
            "--max-num-seqs",
            "8",
            "--state-dir",
            str(state),
            "--no-ui",
            *(["--enforce-eager", "--kv-cache-memory-bytes", "128MiB"] if engine == "vllm" else []),
        ],
        port,
        str(chat_model_path()),
        "/ready",
    )
