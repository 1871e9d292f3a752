"""What a user should know about a vLLM plan beside its figures: known traps of model and release."""

from __future__ import annotations

from collections.abc import Iterator

from qserve.core.model_spec import ModelSpec
from qserve.core.release import shown_release
from qserve.core.schemes import SCHEMES
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.fit import unsampled_seqs
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.rank_shard import ram_table_bytes
from qserve.engines.vllm.plan.terms.adapters import FIRST_STAGE, LAST_STAGE, adapter_sizes
from qserve.engines.vllm.plan.terms.safety_margin import SAFETY_MARGIN
from qserve.engines.vllm.plan.terms.sampled_step import SAMPLED_STEP
from qserve.engines.vllm.plan.versions import NEWEST_RELEASE, VllmVersion
from qserve.planner.candidate import Candidate
from qserve.planner.notes import length_note
from qserve.planner.plan import Plan
from qserve.units import GIB, format_bytes

__all__ = ["explanations_of", "notes_on"]


def notes_on(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Sentences, the most important first."""
    yield from _about_quantization(candidate)
    yield from _about_model(candidate)
    yield from _about_adapters(candidate)
    yield from _about_products(candidate)
    yield from _about_layout(candidate)
    yield from _about_margin(plan)
    yield from _about_sampling(candidate, plan)
    yield from _about_video(candidate)
    yield from _about_rope(plan)
    yield from _about_sleep(candidate, plan)
    yield from length_note(candidate, plan)


def _about_margin(plan: Plan) -> Iterator[str]:
    terms = [term for device in plan.devices for term in device.terms if term.name == SAFETY_MARGIN]
    if not terms or not plan.fits:
        return
    widest = max(terms, key=lambda term: term.high_bytes)
    if widest.num_bytes:
        yield f"{format_bytes(widest.num_bytes, 0 if widest.num_bytes < GIB else 1)} kept as a safety margin"
    else:
        yield "No room for a safety margin; a lower --max-model-len or --max-num-seqs makes some"


def _about_sampling(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """Where the room for a sampled step limits the sequences, or is not there for those that were asked for."""
    terms = [term for device in plan.devices for term in device.terms if term.name == SAMPLED_STEP]
    if not terms or not plan.fits:
        return
    largest, seqs = max(terms, key=lambda term: term.high_bytes), plan.workload.max_num_seqs
    if not largest.num_bytes:
        yield (
            f"No room for a step that samples {seqs} sequences at once: it takes {format_bytes(largest.high_bytes)} "
            "beside vLLM's share of the card; a lower --max-num-seqs or --gpu-memory-utilization makes some"
        )
    elif more := unsampled_seqs(candidate, plan):
        yield (
            f"--max-num-seqs is {seqs} and not {more}, so that a step that samples them all has room beside vLLM's "
            "share of the card; a lower --gpu-memory-utilization makes more"
        )


def _about_sleep(candidate: Candidate, plan: Plan) -> Iterator[str]:
    if candidate.request.of(VllmOptions).enable_sleep_mode and not candidate.on_cpu:
        weights = sum(device.weights_bytes for device in plan.devices)
        yield f"Asleep at level 1 the weights lie in RAM, {format_bytes(weights, 1)} that the plan does not count"


def _about_rope(plan: Plan) -> Iterator[str]:
    told = str(plan.overrides)
    if "rope_parameters" in told and "rope_theta" not in told:
        yield (
            "`vllm serve` needs config.json's rope_theta in --hf-overrides too, since its rope replaces the whole one; "
            "`qserve up` adds it"
        )


def _about_quantization(candidate: Candidate) -> Iterator[str]:
    stored = candidate.spec.quantization
    if stored is not None and stored.kv_cache_dtype == candidate.kv_cache_dtype:
        asked = f"The checkpoint asks for a KV cache in {stored.kv_cache_dtype}"
        yield f"{asked}; --kv-cache-dtype {candidate.dtype} overrides it"
    scheme = candidate.quant.scheme
    if SCHEMES[scheme].by_bitsandbytes:
        if VllmVersion.parse(candidate.engine_version).bitsandbytes_is_plugin:
            yield "bitsandbytes needs the package vllm-bnb-plugin from vLLM 0.28 on"
        if candidate.num_ranks > 1 and not candidate.quant.in_flight:
            yield "vLLM does not run a pre-quantized bitsandbytes checkpoint on several cards"
        if scheme == "bnb-int8":
            yield "vLLM runs 8-bit bitsandbytes without CUDA graphs"


def _about_model(candidate: Candidate) -> Iterator[str]:
    spec, version = candidate.spec, VllmVersion.parse(candidate.engine_version)
    if version.is_unknown:
        counted_as = NEWEST_RELEASE.rpartition(".")[0]
        yield f"vLLM {candidate.engine_version} is newer than this planner, which counts it as {counted_as}"
    if spec.is_hybrid:
        yield ("Hybrid model: every sequence needs cache blocks for its state; --max-num-seqs is set so that they fit")
    if held := ram_table_bytes(candidate):
        yield (
            f"{format_bytes(held)} of the weights are tables of n-grams in pinned RAM, which the machine needs beside "
            """its cards; --engram-config '{"cpu_offload": false}' puts them on the cards"""
        )
    needed = spec.family.vllm.needed
    if needed is not None and version.release < needed:
        yield f"This family needs vLLM {shown_release(needed)} or later"
    if (spec.vision or spec.audio) and not candidate.request.of(VllmOptions).language_model_only:
        yield _about_encoders(spec)


def _about_encoders(spec: ModelSpec) -> str:
    if spec.vision and spec.audio:
        return "The encoders of images and audio are loaded; --language-model-only leaves them out"
    return f"The {'audio' if spec.audio else 'vision'} encoder is loaded; --language-model-only leaves it out"


def _about_adapters(candidate: Candidate) -> Iterator[str]:
    """That the room is taken before any adapter is loaded, and what the embeddings have of it."""
    adapters = candidate.request.of(VllmOptions).adapters
    if adapters is None:
        return
    sizes = list(adapter_sizes(candidate, 0))
    total = sum(size for _, size in sizes)
    yield (
        f"--enable-lora keeps {format_bytes(total)} a rank for {adapters.max_loras} adapters of rank "
        f"{adapters.max_rank}, loaded or not; a lower --max-lora-rank saves most"
    )
    embedded = sum(size for module, size in sizes if module.name in (*FIRST_STAGE, *LAST_STAGE))
    if 4 * embedded >= total and not adapters.targets:
        yield (
            f"{format_bytes(embedded)} of that are for embed_tokens and lm_head, which few adapters train; "
            "--lora-target-modules with the other names leaves them out"
        )


def _about_products(candidate: Candidate) -> Iterator[str]:
    """oneDNN makes no matmul of bf16 for AVX2, and vLLM then calls torch's. Source: vllm 0.32 layers/utils.py."""
    flags = candidate.hardware.cpu.flags
    if candidate.on_cpu and candidate.dtype == "bfloat16" and "avx2" in flags and "avx512f" not in flags:
        yield (
            "vLLM reads prompts several times more slowly in bf16 on a CPU without AVX-512; --engine transformers is "
            "fast there, and so is --dtype float32, with twice the memory"
        )


def _about_layout(candidate: Candidate) -> Iterator[str]:
    heads, ranks = candidate.spec.num_key_value_heads, candidate.tensor_parallel_size
    cards = len(candidate.hardware.devices)
    if ranks > heads:
        yield f"{heads} KV heads on {ranks} ranks: each is kept {ranks // heads} times, so the cache does not shrink"
    if 1 <= candidate.num_ranks < cards:
        verb = "is" if candidate.num_ranks == 1 else "are"
        yield f"{candidate.num_ranks} of {cards} cards {verb} enough; the others stay free"


def _about_video(candidate: Candidate) -> Iterator[str]:
    vision, options = candidate.spec.vision, candidate.request.of(VllmOptions)
    is_left_out = options.media.videos == 0 or options.language_model_only or options.skip_mm_profiling
    if vision and vision.tower.video_grows and not is_left_out:
        yield (
            "vLLM encodes a video at start-up, the longer the larger max_model_len is; "
            """--limit-mm-per-prompt '{"video": 0}' leaves it out"""
        )


def explanations_of(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """What write-ups get wrong about the share of the card and the sampler."""
    if not plan.placement.gpu_memory_utilization:
        return
    seqs = format_bytes(constants.SAMPLER_BYTES_TRITON * 256 * candidate.spec.vocab_size)
    yield (
        "gpu_memory_utilization is a share of the whole card, not of what is free; raising it takes memory from every "
        "other process on the card"
    )
    yield ("kv_cache_memory_bytes sets the cache itself; vLLM then ignores the share")
    yield f"Every 256 sequences of max_num_seqs cost {seqs} in the sampler"
