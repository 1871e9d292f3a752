"""What a worker's process holds beside its model is what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_IMPORTS = """
import sys
from qserve.worker import worker_process

async def serve(document):
    from qserve.engines.transformers.worker.batching.make import make_batcher
    from qserve.model.load import load
    held = {name for name, module in sys.modules.items() if module}
    print(sorted({"sklearn", "scipy", "triton", "pandas", "matplotlib", "gradio", "vllm"} & held))

worker_process.run(serve, "")
"""


def test_nothing_that_no_model_needs_is_imported(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    spec.write_text('{"plan": {"on_cpu": true, "quant": {"scheme": "bf16"}}}')
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, str(spec)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip() == "[]", done.stderr
