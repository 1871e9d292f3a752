"""Every figure of a training plan that is not arithmetic on dimensions, with its source.

"measured" means: torch 2.13's MemTracker over transformers 5.19 models with fake tensors, reproduced by
tests/tiny/training/test_memory.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from qserve.units import GIB

__all__ = [
    "AFTER_LOADING_ON_CPU_BYTES",
    "ASLEEP",
    "ATTENTION_MATRIX_BYTES",
    "BACKWARD_INTERMEDIATE_BYTES",
    "CACHED",
    "EIGHT_BIT_LEAST_ELEMENTS",
    "EIGHT_BIT_STATE_BYTES",
    "ENGINE_OVERHEAD",
    "FRAGMENTATION",
    "FRAGMENTATION_RAMP",
    "LAYER_BYTES",
    "LOGIT_BYTES",
    "NCCL",
    "OPTIMIZERS",
    "PRECISIONS",
    "RUNTIME",
    "RUNTIME_ON_CPU",
    "TILE_BYTES_ON_CPU",
    "TILE_COLUMNS",
    "TILE_TOKENS",
    "ZERO_BUCKET_ELEMENTS",
    "ZERO_BUCKET_ELEMENTS_ON_CPU",
    "ZERO_LIVE_ELEMENTS",
    "ZERO_SUB_GROUP_ELEMENTS",
    "ZERO_SUB_GROUP_ELEMENTS_ON_CPU",
    "Band",
    "Optimizer",
    "Precision",
]


@dataclass(frozen=True)
class Precision:
    """Bytes a trainable parameter has as weight, gradient and fp32 master copy, and of one fp32-or-16-bit state.

    `frozen_bytes` are those of a parameter that is not trained, `cast_bytes` of the copy that autocast keeps.
    """

    weight_bytes: int
    gradient_bytes: int
    master_bytes: int
    state_bytes: int
    frozen_bytes: int = 2
    cast_bytes: int = 0
    meaning: str = ""


PRECISIONS = {
    "mixed": Precision(2, 2, 4, 4, meaning="16-bit weights and gradients, fp32 master copy and states (DeepSpeed)"),
    "amp": Precision(4, 4, 0, 4, cast_bytes=2, meaning="fp32 weights under autocast (Trainer's bf16=True, fp16=True)"),
    "pure": Precision(2, 2, 0, 2, meaning="weights, gradients and states all in 16 bit; updates get lost in rounding"),
    "fp32": Precision(4, 4, 0, 4, frozen_bytes=4, meaning="everything in fp32"),
}


@dataclass(frozen=True)
class Optimizer:
    """`states` tensors of parameter size in the precision's state dtype; `eight_bit`: one byte each instead.

    `factored`: rows + columns instead of rows × columns. `step_copies`: state-sized temporaries of a foreach step;
    `cpu_step_copies`: of the largest tensor, on a CPU, where one tensor is taken after the other; measured.
    """

    states: int
    eight_bit: bool = False
    factored: bool = False
    step_copies: int = 0
    cpu_step_copies: int = 0
    flag: str = ""


OPTIMIZERS = {
    # torch's foreach AdamW holds sqrt(exp_avg_sq) of every parameter at once; fused=True does not.
    "adamw": Optimizer(2, step_copies=1, cpu_step_copies=2, flag="adamw_torch"),
    "adamw-fused": Optimizer(2, flag="adamw_torch_fused"),
    "adamw-8bit": Optimizer(2, eight_bit=True, cpu_step_copies=3, flag="adamw_bnb_8bit"),
    "adafactor": Optimizer(1, factored=True, cpu_step_copies=2, flag="adafactor"),
    "lion": Optimizer(1, cpu_step_copies=3, flag="lion_32bit"),
    "sgd": Optimizer(0, flag="sgd"),
}

# bitsandbytes keeps one fp32 scale a block of 256 states, and transformers keeps embeddings' states in 32 bit.
EIGHT_BIT_STATE_BYTES = 1 + 4 / 256
EIGHT_BIT_LEAST_ELEMENTS = 4096  # bitsandbytes/optim/optimizer.py: min_8bit_size

# Bytes per token and vocabulary entry at the peak of the loss; measured.
LOGIT_BYTES = {
    # log-softmax, the gradient handed to it and the one it returns, in fp32 each.
    "lm": 12,
    # The same where the model's own code does not upcast (remote code of Qwen 1 under DeepSpeed).
    "lm-16bit": 6,
    # TRL's selective_log_softmax over 16-bit logits (under DeepSpeed): the model's, the scaled, and their log-softmax.
    "rl-16bit": 6,
    # The same when accelerate's autocast wrapper converted the logits to fp32.
    "rl-fp32": 16,
    # Without a graph: the model's 16-bit logits, their fp32 copy and its log-softmax.
    "scored": 10,
}

# trl 1.16's log-probabilities: one buffer of so many tokens × columns, in the logits' own width (trl/trainer/utils.py:
# _CHUNKED_LOGPROB_CHUNK_SIZE, trl/kernels/chunked_logprob.py: TOKEN_CHUNK_SIZE). Triton works in place.
TILE_TOKENS = 4096
TILE_COLUMNS = 32768
# Without Triton its _backward_tile holds y, z, log p, p, the gradient and two products beside the buffer, in fp32,
# and a mask of one byte.
TILE_BYTES_ON_CPU = 4 + 7 * 4 + 1


@dataclass(frozen=True)
class LayerBytes:
    """Bytes per token that one decoder layer saves for its backward pass, per unit of each dimension; measured.

    hidden: two RMSNorms, each an fp32 input (4), a 16-bit normalized one (2) and the projections' input (2).
    heads: q, expanded k and v, attention output, 2 bytes each. intermediate: gate, SiLU, up, product, 2 each.
    qk_norm: fp32 and 16-bit input of the norm on q and k.
    fp32_intermediate: gate, up and product behind norms in fp32, 2 more each: bitsandbytes' layers return the width
    that they are given; attention casts back. Measured with layers that do so, tests/tiny/training/test_fp32_norms.py.
    """

    hidden: int = 16
    heads: int = 8
    intermediate: int = 8
    qk_norm: int = 6
    fp32_intermediate: int = 6
    routed_hidden: int = 4  # an expert's gathered input and its weighted output, 2 each
    router: int = 4  # one fp32 probability an expert
    lora_input: int = 4  # PEFT casts the input of every adapter to the adapter's fp32


LAYER_BYTES = LayerBytes()
BACKWARD_INTERMEDIATE_BYTES = 6  # gradients of gate, up and product while one layer is in its backward pass; measured
ATTENTION_MATRIX_BYTES = 8  # eager attention: 16-bit scores, fp32 softmax and its 16-bit copy, a head and token pair

# DeepSpeed's defaults: reduce_bucket_size 5e8 (one flat buffer of that size, whatever there is to reduce),
# sub_group_size 1e9, stage3_max_live_parameters 1e9.
# https://www.deepspeed.ai/docs/config-json/#zero-optimizations-for-fp16-training
ZERO_BUCKET_ELEMENTS = 500_000_000
ZERO_SUB_GROUP_ELEMENTS = 1_000_000_000
# What qserve sets where the ranks are processes on a CPU: gradients of 200 MB, optimizer steps of 400 MB at a time.
ZERO_BUCKET_ELEMENTS_ON_CPU = 50_000_000
ZERO_SUB_GROUP_ELEMENTS_ON_CPU = 100_000_000
ZERO_LIVE_ELEMENTS = 1_000_000_000


@dataclass(frozen=True)
class Band:
    """An expected figure between a low and a high one."""

    expected: float
    low: float
    high: float
    source: str


# CUDA context, cuBLAS workspaces and loaded kernels of a trainer process; NCCL on top where there are several.
RUNTIME = Band(
    0.6 * GIB, 0.4 * GIB, 1.2 * GIB, "CUDA 12 with lazy module loading, A100 and H100 logs: 0.5 GiB + cuBLAS"
)
NCCL = Band(0.5 * GIB, 0.3 * GIB, 2.1 * GIB, "vLLM 0.19 on H100 logs up to 2.1 GiB of non-torch memory at TP 2 to 4")
# The same of a trainer process without a card: Python with torch, transformers and one of TRL's trainers, and beside it
# the data's tables, kernels as they are first called and the heap's small blocks.
AFTER_LOADING_ON_CPU_BYTES = 85 * 1024**2
"""The part of it that comes after the libraries: 37 MiB with 2M parameters, 135 with 85M (docs/results/training.md)."""
RUNTIME_ON_CPU = Band(
    0.51 * GIB,
    0.45 * GIB,
    0.9 * GIB,
    "PSS of TRL 1.16 on torch 2.13's CPU build: 428 to 457 MiB before a model, 37 (2M) to 135 (85M) after",
)

# Where lengths vary, blocks of one length do not fit the buffers of another. Shares of the bytes whose size varies
# (activations and logits): what a run needs beyond them on the smallest card on which it goes through, since the
# allocator gives back whole free segments before it fails. Expected 0 where all batches have one length: 0.13 to 0.18
# in the simulation, and within the error of the other terms.
FRAGMENTATION = Band(
    0.15, 0.0, 0.35, "torch's caching allocator, simulated over batches of varying lengths (bench/fragmentation.py)"
)
FRAGMENTATION_RAMP = 5
"""Lengths that vary by a few percent fragment like others: the whole share from a mean of four fifths down."""
# What it keeps beyond that while there is room, which the driver and max_memory_reserved count: a multiple of the same
# bytes at the mean length. Fitted on the ms-swift 1.x rows of tests/golden, each length one order of samples;
# simulated orders give 0.2 to 6 times.
CACHED = Band(3.2, 0.2, 6.0, "ms-swift 1.x Benchmark.md, max_memory_reserved against the sum of the other terms")

# A vLLM engine put to sleep at level 1 keeps context, graphs and buffers.
ASLEEP = Band(
    1.4 * GIB, 1.0 * GIB, 4.3 * GIB, "vLLM logs: 'Sleep mode freed 71.25 GiB memory, 1.38 GiB memory is still in use'"
)
# Activation peak, context and graphs of an engine beside its weights and KV, at a trainer's small batches.
ENGINE_OVERHEAD = Band(2.0 * GIB, 1.2 * GIB, 3.5 * GIB, "vLLM 0.8 to 0.19 logs of 1.5B to 7B models")
