"""No memory: for the KV cache, for a step, or since something else holds it."""

from __future__ import annotations

import re

from qserve.engines.vllm.launch.failure import Failure, FailureKind
from qserve.engines.vllm.launch.reasons.rule import Rule, rule, says
from qserve.units import GIB

__all__ = ["RULES"]


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
        f"The card ran out of memory: {found['asked']} {found['asked_unit']} were needed when "
        f"{found['free']} {found['free_unit']} of {found['total']} {found['total_unit']} were free. Lower "
        "--max-num-seqs, --max-num-batched-tokens or --kv-cache-memory-bytes, or use fewer bits (--quant 4bit); "
        "nvidia-smi shows whether another program uses memory there.",
        needed_bytes=_sized(found["asked"], found["asked_unit"]),
        available_bytes=_sized(found["free"], found["free_unit"]),
    )


def _memory_taken(found: re.Match[str]) -> Failure:
    return Failure(
        FailureKind.MEMORY_TAKEN,
        f"{found['free']} GiB of {found['total']} GiB were free when vLLM started, and "
        f"--gpu-memory-utilization {found['share']} needs {found['want']} GiB. Another program uses the rest: end it, "
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
        f"hybrid model needs one. --max-num-seqs {most} fits, or give more memory with --kv-cache-memory-bytes.",
        max_num_seqs=most,
    )


RULES: tuple[Rule, ...] = (
    rule(
        r"To serve at least one request with the model's max seq len \((?P<asked>\d+)\), \((?P<need>[\d.]+) GiB KV "
        r"cache is needed, which is larger than the available KV cache memory \((?P<have>[-\d.]+) GiB\)"
        r"(?:.*?estimated maximum model length is (?P<longest>\d+))?",
        _kv_too_small,
    ),
    rule(
        r"max_num_seqs \((?P<asked>\d+)\) exceeds available Mamba cache blocks \((?P<most>\d+)\)", _too_many_sequences
    ),
    rule(
        r"Free memory on device[^(]*\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired GPU "
        r"memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        _memory_taken,
    ),
    rule(
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less than "
        r"requested memory for kv \((?P<want>[\d.]+)",
        _cpu_cache,
    ),
    rule(
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired CPU "
        r"memory utilization \((?P<share>[\d.]+), (?P<want>[\d.]+) GiB\)",
        _memory_taken,
    ),
    rule(
        r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+) (?P<asked_unit>[KMG]iB)\. GPU \d+ has a total "
        r"capacity of (?P<total>[\d.]+) (?P<total_unit>[KMG]iB) of which (?P<free>[\d.]+) "
        r"(?P<free_unit>[KMG]iB) is free",
        _out_of_memory,
    ),
    rule(
        r"CUDA out of memory occurred when warming up (?:sampler|pooler).* with (?P<asked>\d+) dummy requests",
        says(
            FailureKind.OUT_OF_MEMORY,
            "The card ran out of memory while {asked} requests were tried at once. Lower --max-num-seqs, or "
            "--kv-cache-memory-bytes.",
        ),
    ),
    rule(
        r"No available memory for the cache blocks",
        says(
            FailureKind.KV_CACHE_TOO_SMALL,
            "Nothing is left for the KV cache. Give it more with --kv-cache-memory-bytes, or use fewer bits "
            "(--quant 4bit) or fewer tokens a step (--max-num-batched-tokens).",
        ),
    ),
)
