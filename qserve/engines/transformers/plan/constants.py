"""What was measured of the transformers engine, with the version it was measured on."""

from __future__ import annotations

from qserve.planner.constants import Constant
from qserve.units import KIB, MIB

__all__ = [
    "COMPILED_KERNEL",
    "GRAPH_BYTES_FIRST",
    "GRAPH_BYTES_PER_LAYER",
    "PROMPT_READER",
    "PYTHON_CPU",
    "READER_WORD_BYTES",
    "STRUCTURE_TRIAL",
    "TESTED_RELEASE",
    "TORCH_WITH_CUDA",
]

TESTED_RELEASE = "5.19.0"

PYTHON_CPU = Constant(
    380 * MIB,
    320 * MIB,
    700 * MIB,
    "resident memory of a worker process with torch 2.13 CPU and transformers 5.19 before the model is loaded, and "
    "what loading leaves in addition to the weights",
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
    42 * MIB, 40 * MIB, 120 * MIB, "resident memory of a process that reads prompts; its band has room for a large body"
)

STRUCTURE_TRIAL = Constant(
    21 * MIB,
    18 * MIB,
    213 * MIB,
    "resident memory of the process that tries structures; its band has room for three at a time, of 64 MiB each",
)

READER_WORD_BYTES = 430
"""What it holds for each word of the vocabulary: 61 MiB of 150,744 merges in tokenizers 0.23."""

# Of vLLM's graphs of dense decoders in 16 bit, whose layers are as many launches (docs/memory.md). None of this
# engine's was measured, hence the band.
GRAPH_BYTES_FIRST = Constant(
    110 * MIB, 40 * MIB, 200 * MIB, "vLLM 0.28's first graphs: what all share, the pool and cuBLAS workspaces"
)
GRAPH_BYTES_PER_LAYER = Constant(
    200_000,
    100_000,
    330_000,
    "vLLM 0.19 on an H100: 193 to 223 kB a layer and graph of 7B, 8B and 72B; not measured on this engine",
)
