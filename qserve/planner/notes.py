"""What a user should know about a plan beside its figures: known traps of model, engine and release."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.planner.engines.vllm.adapters import adapter_notes
from qserve.planner.engines.vllm.versions import VllmVersion
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup

__all__ = ["notes_on"]


def notes_on(setup: Setup, plan: Plan) -> tuple[str, ...]:
    """Sentences, the most important first."""
    return (*_about_quantization(setup), *_about_model(setup), *adapter_notes(setup), *_about_layout(setup, plan))


def _about_quantization(setup: Setup) -> Iterator[str]:
    stored = setup.spec.quantization
    if stored is not None and stored.kv_cache_dtype == setup.request.kv_cache_dtype and setup.engine == "vllm":
        asked = f"the checkpoint asks for a KV cache in {stored.kv_cache_dtype}"
        yield f"{asked}; --kv-cache-dtype {setup.dtype} overrules it"
    scheme, in_flight = setup.quant.scheme, setup.quant.in_flight
    if scheme.startswith("bnb") and setup.engine == "vllm":
        if VllmVersion.parse(setup.engine_version).bitsandbytes_is_plugin:
            yield "bitsandbytes left vLLM's core in 0.28: this takes the package vllm-bnb-plugin"
        if setup.num_ranks > 1 and not in_flight:
            yield "vLLM does not run a pre-quantized bitsandbytes checkpoint on several cards"
        if scheme == "bnb-int8":
            yield "vLLM runs 8-bit bitsandbytes without CUDA graphs"
    if scheme.startswith("bnb") and setup.engine == "transformers" and setup.spec.moe:
        yield (
            "transformers 5 joins a layer's experts in one parameter, which bitsandbytes leaves in 16 bit "
            "(bitsandbytes#1849): most of this model stays as large as it was"
        )


def _about_model(setup: Setup) -> Iterator[str]:
    spec, request = setup.spec, setup.request
    if setup.engine == "vllm" and VllmVersion.parse(setup.engine_version).is_unknown:
        yield f"vLLM {setup.engine_version} is newer than this planner: counted as 0.32"
    if spec.is_hybrid and setup.engine == "vllm":
        yield (
            "hybrid model: a sequence pins whole blocks for its linear-attention state, so start-up fails with more "
            "sequences than blocks; --max-num-seqs is always given"
        )
        if VllmVersion.parse(setup.engine_version).release < (0, 17) and spec.family.startswith("qwen3_5"):
            yield "this family needs vLLM 0.17 or later"
    if spec.vision and setup.engine == "vllm" and not request.language_model_only:
        yield "the vision encoder is loaded and profiled; --language-model-only leaves both out"


def _about_layout(setup: Setup, plan: Plan) -> Iterator[str]:
    heads, ranks = setup.spec.num_key_value_heads, setup.tensor_parallel_size
    if ranks > heads:
        yield f"{heads} KV heads on {ranks} ranks: each head is kept {ranks // heads} times, the cache does not shrink"
    cards = len(setup.hardware.devices)
    if setup.engine == "vllm" and 1 <= setup.num_ranks < cards:
        yield f"{setup.num_ranks} of {cards} cards suffice; the others stay free"
    positions, request = setup.spec.max_position_embeddings, setup.request
    vision = setup.spec.vision
    is_video_left_out = request.media.videos == 0 or request.language_model_only or request.skip_mm_profiling
    if vision and vision.kind != "qwen3_vl" and setup.engine == "vllm" and not is_video_left_out:
        yield (
            "vLLM encodes a video at start-up, two large frames for every 16384 tokens of max_model_len: "
            """--limit-mm-per-prompt '{"video": 0}' leaves it out"""
        )
    if plan.fits and plan.workload.max_model_len < positions and setup.request.max_model_len is None:
        # A scorer on the transformers engine gets a usual length, not the longest that fits.
        is_usual = setup.engine == "transformers" and setup.spec.head.kind == "score"
        why = "--max-model-len asks for more" if is_usual else "no more fits"
        yield f"max_model_len is {plan.workload.max_model_len} of the model's {positions}: {why}"
