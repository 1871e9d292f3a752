"""The program that vLLM's server runs in: as `python -m` would run it, in its children without its imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_SERVER = """
import gc, json, multiprocessing, sys

if __name__ == "__main__":
    from served.target import child
    print(json.dumps(["server", gc.get_threshold()[0], __file__ == sys.argv[0], sys.argv[1:]]), flush=True)
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    sys.exit(7)
"""
_CHILD = """
import gc, json, sys

def child():
    print(json.dumps(["child", gc.get_threshold()[0], "served.server" in sys.modules, sys.argv[1:]]), flush=True)
"""


def test_the_server_and_its_children_walk_their_objects_less_often(tmp_path: Path) -> None:
    package = tmp_path / "served"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "server.py").write_text(_SERVER)
    (package / "target.py").write_text(_CHILD)
    command = [
        sys.executable,
        "-m",
        "qserve.engines.vllm.launch.plugins.server_process",
        "served.server",
        "--flag",
        "one",
    ]
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, check=False)
    assert done.returncode == 7, done.stderr
    server, child = (json.loads(line) for line in done.stdout.splitlines())
    assert server == ["server", 50_000, True, ["--flag", "one"]]
    assert child[:3] == ["child", 50_000, False], "its child must not import the server"
