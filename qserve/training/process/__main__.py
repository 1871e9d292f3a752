"""`python -m qserve.training.process JOB.json`, on every rank that accelerate starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Before any of them is imported: progress bars belong to the parent, and nobody is told that somebody trains.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

if __name__ == "__main__":
    from qserve.training.process.unused_packages import leave_out_unused
    from qserve.worker.quick_imports import quick_imports

    leave_out_unused(Path(sys.argv[1]))  # before transformers and TRL look for them

    with quick_imports():
        from qserve.training.process.run import main

    sys.exit(main(Path(sys.argv[1])))
