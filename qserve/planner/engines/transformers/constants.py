"""What was measured of the transformers engine, with the version it was measured on."""

from __future__ import annotations

from qserve.planner.constants import Constant
from qserve.units import KIB, MIB

__all__ = ["COMPILED_KERNEL", "PROMPT_READER", "PYTHON_CPU", "READER_WORD_BYTES", "TESTED_RELEASE", "TORCH_WITH_CUDA"]

TESTED_RELEASE = "5.19.0"

PYTHON_CPU = Constant(
    380 * MIB,
    320 * MIB,
    700 * MIB,
    "resident memory of a worker process with torch 2.13 CPU and transformers 5.19 before the model is loaded, and "
    "what loading leaves beside the weights",
)

TORCH_WITH_CUDA = Constant(
    287 * MIB,
    250 * MIB,
    320 * MIB,
    "what torch 2.13's CUDA build maps and touches in a process on a machine without a card: both workers of the demo "
    "held 287 MiB more than with the CPU build",
)

COMPILED_KERNEL = Constant(
    600 * KIB,
    450 * KIB,
    730 * KIB,
    "growth of a worker's heap over the shapes of one matrix after another, torch 2.13 with oneDNN, AVX-512",
)

PROMPT_READER = Constant(
    42 * MIB,
    40 * MIB,
    120 * MIB,
    "resident memory of a process that reads prompts (engine/prompts); its band has room for a large body",
)

READER_WORD_BYTES = 430
"""What it holds for each word of the vocabulary: 61 MiB of 150,744 merges in tokenizers 0.23."""
