"""What the machine lacks: a capability of its card, a driver, a compiler, a package, speed."""

from __future__ import annotations

from qserve.engines.vllm.launch.failure import FailureKind
from qserve.engines.vllm.launch.reasons.rule import Rule, rule, says

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    rule(
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<card>.*?) GPU",
        says(FailureKind.DEVICE, "{card} has no bfloat16; use --dtype float16."),
    ),
    rule(
        r"World size \((?P<ranks>\d+)\) is larger than the number of available GPUs \((?P<cards>\d+)\)",
        says(
            FailureKind.DEVICE,
            "The plan spreads the model over {ranks} cards, and the engine sees {cards}. Look at CUDA_VISIBLE_DEVICES, "
            "or lower --tensor-parallel-size.",
        ),
    ),
    rule(
        r"NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)",
        says(
            FailureKind.DEVICE,
            "The NVIDIA driver (CUDA {found}) is older than the CUDA that this torch was built for. Update the driver, "
            "or install a torch for it; `nvidia-smi` shows both.",
        ),
    ),
    rule(
        r"(?:Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"CUDA driver initialization failed|no CUDA-capable device is detected)",
        says(
            FailureKind.DEVICE,
            "vLLM sees no card: no driver, none in CUDA_VISIBLE_DEVICES, or a container without --gpus all. "
            "`nvidia-smi` lists the cards. Without a card, `make setup ACCELERATOR=cpu` installs vLLM's CPU build.",
        ),
    ),
    rule(
        r"NCCL error: (?P<what>[^(\n]+)",
        says(
            FailureKind.NCCL,
            "The cards could not talk to each other (NCCL: {what}). In a container give it shared memory (--ipc=host "
            "or --shm-size 16g); else NCCL_P2P_DISABLE=1 avoids broken peer access. NCCL_DEBUG=INFO says more.",
        ),
    ),
    rule(
        r"Failed to find C compiler|No working C\+\+ compiler found",
        says(
            FailureKind.TOOLCHAIN,
            "vLLM compiles kernels when it starts, and there is no C compiler (Debian, Ubuntu: apt install g++; or "
            "name one in CC). `qserve doctor` looks for it.",
        ),
    ),
    rule(
        r"fatal error: Python\.h: No such file or directory",
        says(
            FailureKind.TOOLCHAIN,
            "vLLM compiles kernels when it starts, and Python's headers are not here (Debian, Ubuntu: apt install "
            "python3-dev, of this Python's release). `qserve doctor` looks for them.",
        ),
    ),
    rule(
        r"Could not find nvcc|Ninja build failed",
        says(
            FailureKind.TOOLCHAIN,
            "FlashInfer needs to compile a kernel, and the CUDA toolkit (nvcc) is missing or can't compile it. "
            "VLLM_USE_FLASHINFER_SAMPLER=0 avoids FlashInfer for sampling, --engine-args '--attention-backend "
            "TRITON_ATTN' for attention.",
        ),
    ),
    rule(
        r"Timed out waiting for engine core processes to start[\s\S]{0,200}?Waited (?P<waited>\d+)s",
        says(
            FailureKind.SLOW_LOADING,
            "vLLM gave up after {waited} s, most likely while it read the weights: a cold or remote disk. Start it "
            "again, the files may be in memory now; or set VLLM_ENGINE_READY_TIMEOUT_S higher.",
        ),
    ),
    rule(
        r"(?P<what>ImportError: .*(?:cannot open shared object file|undefined symbol|cannot import name).*)",
        says(
            FailureKind.IMPORT,
            "vLLM and the installed torch do not fit together ({what}). `make setup` installs a pair that was tested.",
        ),
    ),
    rule(
        r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'",
        says(FailureKind.IMPORT, "The Python package {name} is missing; install it, or run `make setup` again."),
    ),
    rule(
        r"Worker proc (?P<rank>\S+) died unexpectedly \(exit code: -9\)",
        says(
            FailureKind.UNKNOWN,
            "A process of the engine (rank {rank}) was killed from outside: the kernel does this when RAM runs out "
            "(see dmesg). Lower --kv-cache-memory-bytes or --max-num-seqs, use fewer bits, or free memory.",
        ),
    ),
    rule(
        r"Worker proc (?P<rank>\S+) died unexpectedly \(exit code: (?P<code>-\d+)\)",
        says(
            FailureKind.UNKNOWN,
            "A process of the engine (rank {rank}) was ended by signal {code}: -4 means a CPU without the "
            "instructions that this build uses, -11 a crash in native code.",
        ),
    ),
)
