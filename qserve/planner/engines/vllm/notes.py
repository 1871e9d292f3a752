"""What a user should know about a vLLM plan beside its figures: known traps of model and release."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.planner.engines.vllm import constants
from qserve.planner.engines.vllm.adapters import adapter_notes
from qserve.planner.engines.vllm.options import VllmOptions
from qserve.planner.engines.vllm.terms.uncertain import HELD_BACK
from qserve.planner.engines.vllm.versions import TESTED_RELEASE, VllmVersion
from qserve.planner.notes import length_note
from qserve.planner.plan import Plan
from qserve.planner.setup import Setup
from qserve.units import format_bytes

__all__ = ["explanations_of", "notes_on"]


def notes_on(setup: Setup, plan: Plan) -> Iterator[str]:
    """Sentences, the most important first."""
    yield from _about_quantization(setup)
    yield from _about_model(setup)
    yield from adapter_notes(setup)
    yield from _about_products(setup)
    yield from _about_layout(setup)
    yield from _about_what_is_held_back(plan)
    yield from _about_video(setup)
    yield from _about_rope(setup)
    yield from length_note(setup, plan)


def _about_what_is_held_back(plan: Plan) -> Iterator[str]:
    terms = [term for device in plan.devices for term in device.terms if term.name == HELD_BACK]
    if not terms or not plan.fits:
        return
    widest = max(terms, key=lambda term: term.high_bytes)
    what = widest.formula.partition(" more than expected")[0]
    if widest.num_bytes:
        yield (
            f"{format_bytes(widest.num_bytes)} of a card are held back, since terms are uncertain by that much ({what} "
            "more): a plan that promises too much ends in the middle of a request; --gpu-memory-utilization takes them"
        )
    else:
        yield (
            f"nothing is held back for uncertain terms ({what} more): with it no sequence of this length would fit; a "
            "lower --max-model-len or --max-num-seqs makes it safe"
        )


def _about_rope(setup: Setup) -> Iterator[str]:
    told = str(setup.checkpoint.override_of(setup.request.of(VllmOptions).overrides))
    if "rope_parameters" in told and "rope_theta" not in told:
        yield (
            "vLLM takes the rope of --hf-overrides in place of config.json's own, and config.json, which has its "
            "rope_theta, is not here: `qserve up` writes it in, `vllm serve` wants it beside rope_type"
        )


def _about_quantization(setup: Setup) -> Iterator[str]:
    stored = setup.spec.quantization
    if stored is not None and stored.kv_cache_dtype == setup.kv_cache_dtype:
        asked = f"the checkpoint asks for a KV cache in {stored.kv_cache_dtype}"
        yield f"{asked}; --kv-cache-dtype {setup.dtype} overrules it"
    scheme = setup.quant.scheme
    if scheme.startswith("bnb"):
        if VllmVersion.parse(setup.engine_version).bitsandbytes_is_plugin:
            yield "bitsandbytes left vLLM's core in 0.28: this takes the package vllm-bnb-plugin"
        if setup.num_ranks > 1 and not setup.quant.in_flight:
            yield "vLLM does not run a pre-quantized bitsandbytes checkpoint on several cards"
        if scheme == "bnb-int8":
            yield "vLLM runs 8-bit bitsandbytes without CUDA graphs"


def _about_model(setup: Setup) -> Iterator[str]:
    spec, version = setup.spec, VllmVersion.parse(setup.engine_version)
    if version.is_unknown:
        counted_as = TESTED_RELEASE.rpartition(".")[0]
        yield f"vLLM {setup.engine_version} is newer than this planner: counted as {counted_as}"
    if spec.is_hybrid:
        yield (
            "hybrid model: a sequence pins whole blocks for its linear-attention state, so start-up fails with more "
            "sequences than blocks; --max-num-seqs is always given"
        )
        if version.release < (0, 17) and spec.family.startswith("qwen3_5"):
            yield "this family needs vLLM 0.17 or later"
    if spec.vision and not setup.request.of(VllmOptions).language_model_only:
        yield "the vision encoder is loaded and profiled; --language-model-only leaves both out"


def _about_products(setup: Setup) -> Iterator[str]:
    """oneDNN makes no matmul of bf16 for AVX2, and vLLM then calls torch's. Source: vllm 0.32 layers/utils.py."""
    flags = setup.hardware.cpu.flags
    if setup.on_cpu and setup.dtype == "bfloat16" and "avx2" in flags and "avx512f" not in flags:
        yield (
            "this CPU has no AVX-512, and vLLM no products of its own in bf16 without it: prompts take several times "
            "as long as with --dtype float32 (weights then take twice the memory) or --engine transformers"
        )


def _about_layout(setup: Setup) -> Iterator[str]:
    heads, ranks, cards = setup.spec.num_key_value_heads, setup.tensor_parallel_size, len(setup.hardware.devices)
    if ranks > heads:
        yield f"{heads} KV heads on {ranks} ranks: each head is kept {ranks // heads} times, the cache does not shrink"
    if 1 <= setup.num_ranks < cards:
        yield f"{setup.num_ranks} of {cards} cards suffice; the others stay free"


def _about_video(setup: Setup) -> Iterator[str]:
    vision, options = setup.spec.vision, setup.request.of(VllmOptions)
    is_left_out = options.media.videos == 0 or options.language_model_only or options.skip_mm_profiling
    if vision and vision.kind != "qwen3_vl" and not is_left_out:
        yield (
            "vLLM encodes a video at start-up, two large frames for every 16384 tokens of max_model_len: "
            """--limit-mm-per-prompt '{"video": 0}' leaves it out"""
        )


def explanations_of(setup: Setup, plan: Plan) -> Iterator[str]:
    """What write-ups get wrong about the share of the card and the sampler."""
    if not plan.placement.gpu_memory_utilization:
        return
    vocabulary = setup.spec.vocab_size
    seqs = format_bytes(constants.SAMPLER_BYTES_TRITON * 256 * vocabulary)
    yield (
        "gpu_memory_utilization is a share of the whole card, not of what is free; raising it gives the engine more "
        "and takes it from every neighbour (a trainer, a second engine)"
    )
    yield (
        "kv_cache_memory_bytes sets the cache itself: vLLM then ignores the share, and start-up no longer depends on "
        "what else moves on the card"
    )
    yield f"every 256 sequences of max_num_seqs cost {seqs} of sampler peak with a vocabulary of {vocabulary}"
