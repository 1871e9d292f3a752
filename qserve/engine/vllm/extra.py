"""The user's own flags of vLLM (`--engine-args "…"`), held against what qserve has decided."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qserve.engine.vllm.parser import Argument, FlagParser
from qserve.errors import UsageError

__all__ = ["merged"]

# Settings of the engine that the plan decides, and how qserve is told to decide otherwise.
_PLANNED = {
    "dtype": "--dtype",
    "quantization": "--quant",
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_memory_bytes": "--kv-cache-memory-bytes",
    "mamba_ssm_cache_dtype": "--mamba-ssm-cache-dtype",
    "block_size": "--block-size",
    "speculative_config": "--num-speculative-tokens",
    "enforce_eager": "--enforce-eager",
    "language_model_only": "--language-model-only",
    "enable_prefix_caching": "--enable-prefix-caching or --no-enable-prefix-caching",
    "enable_chunked_prefill": "--max-num-batched-tokens",
    "num_gpu_blocks_override": "--kv-cache-memory-bytes",
    "limit_mm_per_prompt": "--limit-mm-per-prompt",
    "mm_processor_kwargs": "--mm-processor-kwargs",
    "skip_mm_profiling": "--skip-mm-profiling",
    "enable_lora": "--enable-lora",
    "max_loras": "--max-loras",
    "max_lora_rank": "--max-lora-rank",
    "fully_sharded_loras": "--fully-sharded-loras",
    "lora_target_modules": "--lora-target-modules",
    "cpu_offload_gb": "--engine transformers --offload cpu",
    "offload_backend": "--engine transformers --offload cpu",
}

_SAYS_NOTHING = (
    "--no-enforce-eager", "--no-language-model-only", "--no-enable-lora", "--no-fully-sharded-loras",
    "--no-skip-mm-profiling",
)  # fmt: skip

# What is qserve's own: how it reaches the engine, and what it has promised of it.
_ONE_REPLICA = "qserve starts one replica of what it planned; leave it out"
_OWNED = {
    "model": "qserve's --model names it",
    "help": "it starts nothing; ask vLLM itself",
    "model_tag": "qserve's --model names it",
    "served_model_name": "qserve's --served-model-name names it",
    "host": "the engine listens on a private socket; qserve's --host opens the service",
    "port": "the engine listens on a private socket; qserve's --port opens the service",
    "uds": "the engine listens on a private socket of qserve's",
    "grpc": "qserve reaches the engine by HTTP; leave it out",
    "grpc_port": "qserve reaches the engine by HTTP; leave it out",
    "api_key": "the engine has an internal key; qserve's --api-key guards the service",
    "root_path": "the gateway stands in front of the engine; leave it out",
    "ssl_keyfile": "the gateway speaks to clients; put TLS in front of qserve",
    "ssl_certfile": "the gateway speaks to clients; put TLS in front of qserve",
    "ssl_ca_certs": "the gateway speaks to clients; put TLS in front of qserve",
    "ssl_cert_reqs": "the gateway speaks to clients; put TLS in front of qserve",
    "ssl_ciphers": "the gateway speaks to clients; put TLS in front of qserve",
    "enable_ssl_refresh": "the gateway speaks to clients; put TLS in front of qserve",
    "allowed_origins": "qserve's --cors-origin says it",
    "allowed_methods": "qserve's --cors-origin says it",
    "allowed_headers": "qserve's --cors-origin says it",
    "allow_credentials": "qserve's --cors-origin says it",
    "config": "write its flags out, so that each can be checked against the plan",
    "headless": _ONE_REPLICA,
    "api_server_count": _ONE_REPLICA,
    "data_parallel_size": _ONE_REPLICA,
    "data_parallel_size_local": _ONE_REPLICA,
    "data_parallel_rank": _ONE_REPLICA,
    "data_parallel_start_rank": _ONE_REPLICA,
    "data_parallel_address": _ONE_REPLICA,
    "data_parallel_rpc_port": _ONE_REPLICA,
    "data_parallel_backend": _ONE_REPLICA,
    "data_parallel_hybrid_lb": _ONE_REPLICA,
    "data_parallel_external_lb": _ONE_REPLICA,
    "data_parallel_multi_port_external_lb": _ONE_REPLICA,
    "nnodes": _ONE_REPLICA,
    "node_rank": _ONE_REPLICA,
    "disable_log_stats": "qserve reports what /metrics counts; leave it out",
    "log_level": "qserve reads the engine's log; leave it out",
    "logging_config": "qserve reads the engine's log; leave it out",
    "disable_fastapi_docs": "qserve reads the engine's OpenAPI document; leave it out",
    "tokens_only": "the gateway speaks text; leave it out",
    "runner": "this worker generates; a reward model is served with qserve's --reward",
    "convert": "this worker generates; a reward model is served with qserve's --reward",
}  # fmt: skip


def merged(own: Sequence[str], defaults: Sequence[str], words: Sequence[str], parser: FlagParser) -> tuple[str, ...]:
    """One command line of what was decided, what is merely usual, and what the user adds.

    Args:
        own: what the plan led to and what qserve needs; it stands.
        defaults: what the user's words may replace.
        words: the user's.
        parser: the installed engine's; all three are checked against it.

    Raises UsageError for a flag of the user's that is qserve's, that contradicts the plan (both are named), or that
    the engine does not know.

    """
    decided = {argument.flag.dest: argument for argument in parser.parse(own)}
    added = [argument for argument in parser.parse(words) if _adds(argument, decided)]
    for argument in added:
        _check_adapters(argument)
    replaced = {argument.flag.dest for argument in added}
    usual = [argument for argument in parser.parse(defaults) if argument.flag.dest not in replaced]
    return (*own, *(word for argument in (*usual, *added) for word in argument.words))


def _adds(argument: Argument, decided: Mapping[str, Argument]) -> bool:
    """Whether this flag of the user's is new; False where it says what is decided anyway."""
    dest, written = argument.flag.dest, f"--engine-args {' '.join(argument.words)}"
    if dest in _OWNED:
        raise UsageError(f"{written}: {_OWNED[dest]}")
    mine = decided.get(dest)
    if mine is not None and _meaning(mine) == _meaning(argument):
        return False
    if dest in _PLANNED and not (mine is None and _is_nothing(argument)):
        raise UsageError(
            f"{written} contradicts the plan, which has {_written(mine, dest)}; use qserve's {_PLANNED[dest]}, so that "
            "it is counted"
        )
    if mine is not None:
        raise UsageError(f"{written} contradicts {_written(mine, dest)}, which qserve needs; leave it out")
    return True


def _check_adapters(argument: Argument) -> None:
    """vLLM looks for an adapter's folder once the model is loaded, half a minute later."""
    if argument.flag.dest != "lora_modules":
        return
    for value in argument.values:
        path = json.loads(value).get("path", "") if value.startswith("{") else value.partition("=")[2]
        if path.startswith(("/", ".", "~")) and not (Path(path).expanduser() / "adapter_config.json").is_file():
            raise UsageError(
                f"--engine-args --lora-modules {value}: {path} holds no adapter_config.json; name the adapter's folder"
            )


def _written(mine: Argument | None, dest: str) -> str:
    return " ".join(mine.words) if mine is not None else f"no --{dest.replace('_', '-')}"


def _is_nothing(argument: Argument) -> bool:
    """`--no-enforce-eager` beside a plan without --enforce-eager says nothing; so does `--quantization None`."""
    return argument.flag.name in _SAYS_NOTHING or argument.values in (("auto",), ("None",))


def _meaning(argument: Argument) -> Any:
    """Two arguments with the same meaning are equal: 8k and 8000, 0.90 and 0.9, JSON in any spacing."""
    if not argument.values:
        return not argument.flag.name.startswith("--no-")
    return argument.key, tuple(_number(value) for value in argument.values)


def _number(text: str) -> Any:
    short = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgG])(i?B?)", text)
    if short is not None:
        power = "kmg".index(short[2].lower()) + 1
        return float(short[1]) * (1000 if short[2].islower() else 1024) ** power
    try:
        return json.loads(text)
    except ValueError:
        return text
