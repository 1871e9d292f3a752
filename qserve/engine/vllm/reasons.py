"""What the engine says when it does not start, and what that means: one rule per reason, the most specific first.

Each rule has a real log line in tests/unit/vllm. Longer than other files because it is a table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from qserve.detect.engines.vllm import install_plugin_command
from qserve.detect.packages import Packages
from qserve.engine.vllm.failure import Failure, FailureKind
from qserve.units import GIB

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """A pattern over the whole log, and what its match means."""

    pattern: re.Pattern[str]
    failure: Callable[[re.Match[str]], Failure]


def _gib(text: str) -> int:
    return int(float(text) * GIB)


def _sized(number: str, unit: str) -> int:
    return int(float(number) * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit])


def _kv_too_small(found: re.Match[str]) -> Failure:
    longest = int(found["longest"]) if found["longest"] else None
    way = f"--max-model-len {longest} fits, or" if longest else "Even a short request does not fit;"
    return Failure(
        FailureKind.KV_CACHE_TOO_SMALL,
        f"One request of {found['asked']} tokens needs {found['need']} GiB of KV cache, and vLLM has {found['have']} "
        f"GiB for it. {way} give it more with --kv-cache-memory-bytes, or fewer bits with --quant 4bit or "
        "--kv-cache-dtype fp8.",
        max_model_len=longest,
        needed_bytes=_gib(found["need"]),
        available_bytes=_gib(found["have"]),
    )


def _out_of_memory(found: re.Match[str]) -> Failure:
    return Failure(
        FailureKind.OUT_OF_MEMORY,
        f"The card ran out of memory: {found['asked']} {found['asked_unit']} were wanted when "
        f"{found['free']} {found['free_unit']} of {found['total']} {found['total_unit']} were free. Lower "
        "--max-num-seqs, --max-num-batched-tokens or --kv-cache-memory-bytes, or use fewer bits (--quant 4bit); "
        "nvidia-smi shows whether another program holds memory there.",
        needed_bytes=_sized(found["asked"], found["asked_unit"]),
        available_bytes=_sized(found["free"], found["free_unit"]),
    )


def _memory_taken(found: re.Match[str]) -> Failure:
    return Failure(
        FailureKind.MEMORY_TAKEN,
        f"{found['free']} GiB of {found['total']} GiB were free when vLLM started, and "
        f"--gpu-memory-utilization {found['share']} wants {found['want']} GiB. Something else holds the rest: end it, "
        "or lower --gpu-memory-utilization.",
        needed_bytes=_gib(found["want"]),
        available_bytes=_gib(found["free"]),
    )


def _cpu_cache(found: re.Match[str]) -> Failure:
    return Failure(
        FailureKind.OUT_OF_MEMORY,
        f"The KV cache of {found['want']} GiB does not fit into the {found['free']} GiB of RAM that were free once the "
        "model was loaded. Lower --kv-cache-memory-bytes, or free memory.",
        needed_bytes=_gib(found["want"]),
        available_bytes=_gib(found["free"]),
        during_cache=True,
    )


def _too_many_sequences(found: re.Match[str]) -> Failure:
    most = int(found["most"])
    return Failure(
        FailureKind.TOO_MANY_SEQUENCES,
        f"--max-num-seqs {found['asked']} is more than the {most} blocks of the cache, and each running request of a "
        f"hybrid model needs one. --max-num-seqs {most} fits, or more memory with --kv-cache-memory-bytes.",
        max_num_seqs=most,
    )


def _plugin(_: re.Match[str]) -> Failure:
    packages = Packages.installed()
    return Failure(
        FailureKind.MISSING_PLUGIN,
        "This quantization needs vllm-bnb-plugin: bitsandbytes left vLLM's core in 0.28. Install it: "
        f"{install_plugin_command(packages)}. Or take a quantized checkpoint (--quant awq), or --engine transformers.",
    )


def _says(kind: FailureKind, message: str) -> Callable[[re.Match[str]], Failure]:
    """A failure whose message quotes groups of the pattern by name."""
    return lambda found: Failure(kind, message.format(**{k: v or "" for k, v in found.groupdict().items()}))


def _rule(pattern: str, failure: Callable[[re.Match[str]], Failure]) -> Rule:
    return Rule(re.compile(pattern, re.MULTILINE), failure)


_AGAIN = "Download it again, or name another folder with --model."

RULES: tuple[Rule, ...] = (
    _rule(
        r"To serve at least one request with the model's max seq len \((?P<asked>\d+)\), \((?P<need>[\d.]+) GiB KV "
        r"cache is needed, which is larger than the available KV cache memory \((?P<have>[-\d.]+) GiB\)"
        r"(?:.*?estimated maximum model length is (?P<longest>\d+))?",
        _kv_too_small,
    ),
    _rule(
        r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<most>\d+)\)", _too_many_sequences
    ),
    _rule(
        r"Free memory on device[^(]*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired GPU "
        r"memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        _memory_taken,
    ),
    _rule(
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less than "
        r"requested memory for kv \((?P<want>[\d.]+)",
        _cpu_cache,
    ),
    _rule(
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired CPU "
        r"memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        _memory_taken,
    ),
    _rule(
        r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+) (?P<asked_unit>[KMG]iB)\. GPU \d+ has a total "
        r"capacity of (?P<total>[\d.]+) (?P<total_unit>[KMG]iB) of which (?P<free>[\d.]+) "
        r"(?P<free_unit>[KMG]iB) is free",
        _out_of_memory,
    ),
    _rule(
        r"CUDA out of memory occurred when warming up (?:sampler|pooler).* with (?P<asked>\d+) dummy requests",
        _says(
            FailureKind.OUT_OF_MEMORY,
            "The card ran out of memory while {asked} requests were tried at once. Lower --max-num-seqs, or "
            "--kv-cache-memory-bytes.",
        ),
    ),
    _rule(
        r"No available memory for the cache blocks",
        _says(
            FailureKind.KV_CACHE_TOO_SMALL,
            "Nothing is left for the KV cache. Give it more with --kv-cache-memory-bytes, or use fewer bits "
            "(--quant 4bit) or fewer tokens a step (--max-num-batched-tokens).",
        ),
    ),
    _rule(r"Unknown quantization method: '?bitsandbytes", _plugin),
    _rule(
        r"Unknown quantization method: '?(?P<name>[\w-]+)|Quantization method '?(?P<other>[\w-]+)'? is not supported",
        _says(
            FailureKind.QUANTIZATION,
            "This vLLM knows no quantization {name}{other}. Take another checkpoint of the model (--quant awq, fp8), "
            "or --engine transformers.",
        ),
    ),
    _rule(
        r"no longer supports online quantization\. Please use `--quantization (?P<name>\w+)`",
        _says(
            FailureKind.QUANTIZATION,
            "This release of vLLM quantizes while loading with --quantization {name}; give qserve --quant fp8, which "
            "says it so.",
        ),
    ),
    _rule(
        r"[Tt]he quantization method (?P<name>[\w-]+) is not supported for the current GPU\. Minimum capability: "
        r"(?P<least>\d+)\. Current capability: (?P<have>\d+)",
        _says(
            FailureKind.QUANTIZATION,
            "The card is of compute capability {have}, and {name} needs {least}. Use --quant 4bit or awq, or 16 bit.",
        ),
    ),
    _rule(
        r"(?P<name>[\w-]+) quantization is currently not supported in (?P<device>\w+)",
        _says(
            FailureKind.QUANTIZATION,
            "vLLM does not run {name} on a {device}. Use --quant bf16 or bnb-nf4, or --engine transformers.",
        ),
    ),
    _rule(
        r"(?P<dtype>[\w.]+) is not supported for quantization method (?P<name>[\w-]+)\. Supported dtypes: (?P<may>.*)",
        _says(FailureKind.QUANTIZATION, "{name} does not compute in {dtype}; --dtype takes {may} with it."),
    ),
    _rule(
        r"No module named '(?P<name>torchvision[\w.]*)'|(?P<other>torchvision::nms) does not exist",
        _says(
            FailureKind.IMPORT,
            "vLLM needs torchvision for this model, and there is no build of it beside a CPU torch. Serve it with "
            "--engine transformers, or on a machine with a card.",
        ),
    ),
    _rule(
        r"Model architecture (?P<name>\w+) was supported in vLLM until v(?P<until>[\d.]+)",
        _says(
            FailureKind.ARCHITECTURE,
            "{name} left vLLM after {until}. Serve it with --engine transformers.",
        ),
    ),
    _rule(
        r"Model architectures \[(?P<names>[^\]]*)\] (?:are not supported|failed to be inspected)",
        _says(
            FailureKind.ARCHITECTURE,
            "This vLLM has no model {names}. Update vLLM, or serve it with --engine transformers if that knows it.",
        ),
    ),
    _rule(
        r"has model type `(?P<name>\w+)` but Transformers does not recognize this architecture",
        _says(
            FailureKind.ARCHITECTURE,
            "Neither vLLM nor the installed transformers knows the model type {name} that config.json names. It may be "
            "newer than both; update them, or check the folder.",
        ),
    ),
    _rule(
        r"invalid (?P<what>tool call|reasoning) parser: (?P<name>[\w-]+)",
        _says(
            FailureKind.FLAG,
            "The installed vLLM has no {what} parser {name}; "
            "`python -m vllm.entrypoints.openai.api_server --help=all` lists those it has.",
        ),
    ),
    _rule(
        r"unrecognized arguments: (?P<words>.+)",
        _says(FailureKind.FLAG, "The installed vLLM does not know {words}. Take it out of --engine-args."),
    ),
    _rule(
        r"error: argument (?P<flag>[\w/, -]+): (?P<what>(?:invalid|expected).+)",
        _says(FailureKind.FLAG, "vLLM refuses {flag}: {what}. Change it in --engine-args."),
    ),
    _rule(
        r"error: argument (?P<flag>[\w/, -]+): \d+ validation errors? for \w+\s+(?:Value|Assertion) error, "
        r"(?P<what>[^\[\n]+?)\.? \[",
        _says(FailureKind.FLAG, "vLLM refuses {flag}: {what}. Change it in --engine-args."),
    ),
    _rule(
        r"error: argument (?P<flag>[\w/, -]+): \d+ validation errors? for \w+\s+(?P<field>\S+)\s+"
        r"(?P<what>[^\[\n]+?) \[",
        _says(FailureKind.FLAG, "vLLM refuses {field} in {flag}: {what}. Change it in --engine-args."),
    ),
    _rule(
        r"HFValidationError: Repo id must .*: '(?P<path>[^']*)'",
        _says(FailureKind.FLAG, "There is no folder {path}, which --engine-args names; correct it there."),
    ),
    _rule(
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\((?:\w+=)?(?P<most>\d+)",
        _says(
            FailureKind.LENGTH,
            "--max-model-len {asked} is more than the {most} positions that the model was made for; lower it to that.",
        ),
    ),
    _rule(
        r"max_num_batched_tokens \((?P<tokens>\d+)\) must be greater than or equal to max_num_seqs \((?P<seqs>\d+)\)",
        _says(
            FailureKind.FLAG,
            "A step of --max-num-batched-tokens {tokens} can't hold a token of each of --max-num-seqs {seqs} requests: "
            "raise the first or lower the second.",
        ),
    ),
    _rule(
        r"\[Errno 98\] .*[Aa]ddress already in use",
        _says(
            FailureKind.ADDRESS_IN_USE,
            "The engine's own socket is taken: an earlier worker still listens there, or left it behind. Stop it and "
            "start again.",
        ),
    ),
    _rule(
        r"chat template[^(]*\((?P<file>[^)]*)\)\s+(?:appears path-like, but doesn't exist|looks like a file path)",
        _says(FailureKind.CHAT_TEMPLATE, "There is no chat template at {file}; correct --chat-template."),
    ),
    _rule(
        r"jinja2\.exceptions\.\w+: (?P<what>.+)",
        _says(
            FailureKind.CHAT_TEMPLATE,
            "The checkpoint's chat template is broken ({what}). Correct its chat_template.jinja, or give another with "
            "--engine-args '--chat-template FILE'.",
        ),
    ),
    _rule(
        r"Cannot find any model weights with `(?P<folder>[^`]*)`",
        _says(FailureKind.CHECKPOINT, f"{{folder}} holds no weights (no *.safetensors). {_AGAIN}"),
    ),
    _rule(
        r"(?:No such file or directory|FileNotFoundError).*?(?P<file>[\w./-]+\.(?:safetensors|bin))",
        _says(FailureKind.CHECKPOINT, f"{{file}} is missing, though the checkpoint's index names it. {_AGAIN}"),
    ),
    _rule(
        r"(?:SafetensorError: |Error while deserializing header: )(?P<what>.+)",
        _says(
            FailureKind.CHECKPOINT,
            f"A weights file is damaged or cut short (safetensors: {{what}}). {_AGAIN}",
        ),
    ),
    _rule(
        r"[Ff]ollowing weights were not initialized from checkpoint: (?P<names>.{1,200})",
        _says(
            FailureKind.CHECKPOINT, f"The checkpoint lacks tensors that its config.json asks for: {{names}}. {_AGAIN}"
        ),
    ),
    _rule(
        r"There is no module or parameter named '?(?P<name>[\w.]+)'? in (?P<model>\w+)",
        _says(
            FailureKind.CHECKPOINT,
            "The checkpoint holds a tensor {name} that {model} has no place for: config.json and weights are not of "
            "the same model, or it has a head of its own (--engine transformers).",
        ),
    ),
    _rule(
        r"Attempted to load weight \((?P<found>[^)]*\]?\)?)\) ?into parameter \((?P<wanted>[^)]*\]?\)?)\)",
        _says(
            FailureKind.CHECKPOINT,
            "A tensor is of shape {found} where config.json asks for {wanted}: the two are not of the same model. "
            f"{_AGAIN}",
        ),
    ),
    _rule(
        r"start \(\d+\) \+ length \((?P<wanted>\d+)\) exceeds dimension size \((?P<found>\d+)\)",
        _says(
            FailureKind.CHECKPOINT,
            "A tensor has {found} rows or columns where config.json asks for {wanted} or more: the two are not of the "
            f"same model. {_AGAIN}",
        ),
    ),
    _rule(
        r"(?:Invalid repository ID or local directory specified:\s*'(?P<folder>[^']*)'|no file named config\.json|"
        r"does not appear to have a file named config\.json)",
        _says(FailureKind.CHECKPOINT, f"There is no model that vLLM can read in {{folder}}: no config.json. {_AGAIN}"),
    ),
    _rule(
        r"(?:Can't load tokenizer|Couldn't instantiate the backend tokenizer|Tokenizer class \w+ does not exist|"
        r"Unable to load vocabulary).*",
        _says(FailureKind.CHECKPOINT, f"The checkpoint's tokenizer can't be loaded (tokenizer.json). {_AGAIN}"),
    ),
    _rule(
        r"reply_label_ids[\s\S]*?IndexError: list index out of range",
        _says(FailureKind.CHECKPOINT, f"The checkpoint has no tokenizer, or an empty one (tokenizer.json). {_AGAIN}"),
    ),
    _rule(
        r"_C::\w*fp8\w*\(\) expected at most 0 argument",
        _says(
            FailureKind.QUANTIZATION,
            "vLLM's CPU build has no kernels for fp8. Use --quant bf16 or bnb-nf4, or a machine with a card.",
        ),
    ),
    _rule(
        r"Bfloat16 is only supported on GPUs with compute capability of at least 8\.0\. Your (?P<card>.*?) GPU",
        _says(FailureKind.DEVICE, "{card} has no bfloat16; use --dtype float16."),
    ),
    _rule(
        r"World size \((?P<ranks>\d+)\) is larger than the number of available GPUs \((?P<cards>\d+)\)",
        _says(
            FailureKind.DEVICE,
            "The plan spreads the model over {ranks} cards, and the engine sees {cards}. Look at CUDA_VISIBLE_DEVICES, "
            "or lower --tensor-parallel-size.",
        ),
    ),
    _rule(
        r"NVIDIA driver on your system is too old \(found version (?P<found>\d+)\)",
        _says(
            FailureKind.DEVICE,
            "The NVIDIA driver (CUDA {found}) is older than the CUDA that this torch was built for. Update the driver, "
            "or install a torch for it; `nvidia-smi` shows both.",
        ),
    ),
    _rule(
        r"(?:Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver|"
        r"CUDA driver initialization failed|no CUDA-capable device is detected)",
        _says(
            FailureKind.DEVICE,
            "vLLM sees no card: no driver, none in CUDA_VISIBLE_DEVICES, or a container without --gpus all. "
            "`nvidia-smi` tells. Without a card, `make setup ACCELERATOR=cpu` installs vLLM's CPU build.",
        ),
    ),
    _rule(
        r"NCCL error: (?P<what>[^(\n]+)",
        _says(
            FailureKind.NCCL,
            "The cards could not talk to each other (NCCL: {what}). In a container give it shared memory (--ipc=host "
            "or --shm-size 16g); else NCCL_P2P_DISABLE=1 avoids broken peer access. NCCL_DEBUG=INFO says more.",
        ),
    ),
    _rule(
        r"Failed to find C compiler|No working C\+\+ compiler found",
        _says(
            FailureKind.TOOLCHAIN,
            "vLLM compiles kernels when it starts, and there is no C compiler (Debian, Ubuntu: apt install g++; or "
            "name one in CC). `qserve doctor` looks for it.",
        ),
    ),
    _rule(
        r"fatal error: Python\.h: No such file or directory",
        _says(
            FailureKind.TOOLCHAIN,
            "vLLM compiles kernels when it starts, and Python's headers are not here (Debian, Ubuntu: apt install "
            "python3-dev, of this Python's release). `qserve doctor` looks for them.",
        ),
    ),
    _rule(
        r"Could not find nvcc|Ninja build failed",
        _says(
            FailureKind.TOOLCHAIN,
            "FlashInfer wanted to compile a kernel, and the CUDA toolkit that is here (nvcc) can't, or there is none. "
            "VLLM_USE_FLASHINFER_SAMPLER=0 does without it for sampling, --engine-args '--attention-backend "
            "TRITON_ATTN' for attention.",
        ),
    ),
    _rule(
        r"Timed out waiting for engine core processes to start[\s\S]{0,200}?Waited (?P<waited>\d+)s",
        _says(
            FailureKind.SLOW_LOADING,
            "vLLM gave up after {waited} s, most likely while it read the weights: a cold or remote disk. Start it "
            "again, the files may be in memory now; or set VLLM_ENGINE_READY_TIMEOUT_S higher.",
        ),
    ),
    _rule(
        r"(?P<what>ImportError: .*(?:cannot open shared object file|undefined symbol|cannot import name).*)",
        _says(
            FailureKind.IMPORT,
            "vLLM and the installed torch do not fit together ({what}). `make setup` installs a pair that was tested.",
        ),
    ),
    _rule(
        r"ModuleNotFoundError: No module named '(?P<name>[\w.]+)'",
        _says(FailureKind.IMPORT, "The Python package {name} is missing; install it, or run `make setup` again."),
    ),
    _rule(
        r"Worker proc (?P<rank>\S+) died unexpectedly \(exit code: -9\)",
        _says(
            FailureKind.UNKNOWN,
            "A process of the engine (rank {rank}) was killed from outside: the kernel does this when RAM runs out "
            "(dmesg tells). Lower --kv-cache-memory-bytes or --max-num-seqs, use fewer bits, or free memory.",
        ),
    ),
    _rule(
        r"Worker proc (?P<rank>\S+) died unexpectedly \(exit code: (?P<code>-\d+)\)",
        _says(
            FailureKind.UNKNOWN,
            "A process of the engine (rank {rank}) was ended by signal {code}: -4 means a CPU without the "
            "instructions that this build uses, -11 a crash in native code.",
        ),
    ),
)
