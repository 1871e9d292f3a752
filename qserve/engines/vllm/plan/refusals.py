"""Requests that vLLM can't serve, whatever fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.nested import text_config
from qserve.core.release import shown_release
from qserve.core.wheels import shown, too_old
from qserve.engines.vllm.plan.context import check_rope
from qserve.engines.vllm.plan.options import Adapters, VllmOptions
from qserve.engines.vllm.plan.sparse_refusals import refuse_of_index_and_tables
from qserve.engines.vllm.plan.terms.adapters import adapted_modules
from qserve.engines.vllm.plan.versions import TESTED_RELEASE, VllmVersion, check_knows
from qserve.errors import UsageError
from qserve.planner.request import PlanRequest

__all__ = ["refuse", "why_no_kernels"]

# The first release of an option. Source: vllm#34936, merged after 0.16; https://juejin.cn/post/7626003597824311322.
_SINCE = {"performance_mode": (0, 17, 0)}

_MOST_VOCABULARY = 258048  # vllm lora/layers/logits_processor.py


def refuse(checkpoint: Checkpoint, hardware: Hardware, request: PlanRequest) -> None:
    """Raises UsageError for what a start of vLLM would end with."""
    options, release = request.of(VllmOptions), request.engine_version or TESTED_RELEASE
    why = why_no_kernels(hardware.devices, release)
    if why is not None:
        raise UsageError(f"{why}; give --engine transformers")
    if options.block_size is not None and options.block_size % 16:
        raise UsageError(f"--block-size {options.block_size}: vLLM's attention takes multiples of 16")
    seqs, batched = request.max_num_seqs, request.max_num_batched_tokens
    if seqs is not None and batched is not None and batched < seqs:
        raise UsageError(
            f"--max-num-batched-tokens {batched} is less than --max-num-seqs {seqs}: a step of vLLM holds a token of "
            "every sequence; raise the first or lower the second"
        )
    device = (hardware.devices or (hardware.cpu_device,))[0]
    _refuse_what_is_not_there(options, release, device)
    _refuse_dual_chunks(checkpoint, VllmVersion.parse(release), device)
    _refuse_what_no_attention_reads(options, checkpoint.spec, device)
    refuse_of_index_and_tables(checkpoint, device, request)
    if options.adapters is not None:
        version = VllmVersion.parse(release)
        _refuse_adapters(checkpoint.spec, options.adapters, version, options.tensor_parallel_size or 1)
    if options.num_speculative_tokens and not checkpoint.spec.mtp_layers:
        raise UsageError(
            f"--num-speculative-tokens {options.num_speculative_tokens}: {checkpoint.id} has no MTP head to draft "
            "with; leave it out"
        )
    if options.num_ngram_tokens:
        _refuse_lookup(checkpoint, options)
    _refuse_spread_experts(checkpoint, options)
    check_rope(checkpoint.spec.rope, checkpoint.id)
    check_knows(checkpoint.spec, release)


def _refuse_lookup(checkpoint: Checkpoint, options: VllmOptions) -> None:
    """Raises UsageError for n-grams beside another way to draft, and where what they keep is not counted."""
    flag, spec = f"--num-ngram-tokens {options.num_ngram_tokens}", checkpoint.spec
    if options.num_speculative_tokens:
        raise UsageError(
            f"{flag} and --num-speculative-tokens {options.num_speculative_tokens} are two ways to draft, and vLLM "
            "takes one; leave one of them out"
        )
    if spec.linear_attention is not None or spec.index is not None:
        instead = "; its MTP head drafts with --num-speculative-tokens" if spec.mtp_layers else ""
        raise UsageError(
            f"{flag}: the plan does not count what drafts by n-grams keep beside the attention of {checkpoint.id}; "
            f"leave it out{instead}"
        )


def _refuse_what_is_not_there(options: VllmOptions, release: str, device: Device) -> None:
    """Raises UsageError for an option that the release or the platform lacks."""
    version = VllmVersion.parse(release).release
    for name, first in _SINCE.items():
        flag, default = f"--{name.replace('_', '-')}", getattr(VllmOptions, name)
        if getattr(options, name) != default and version < first:
            raise UsageError(
                f"{flag} is in vLLM from {shown_release(first)} on, and not in {release}; leave one of them out"
            )
    if options.enable_sleep_mode and device.kind == "cpu":
        raise UsageError("--enable-sleep-mode: vLLM puts models on cards alone to sleep; leave it out")


def why_no_kernels(devices: Iterable[Device], release: str) -> str | None:
    """Half a sentence on a card that the release's wheels have no kernels for; None where they have."""
    least = VllmVersion.parse(release).least_capability
    old = too_old(devices, least)
    if old is None:
        return None
    return (
        f"{old.name} has compute capability {shown(old.compute_capability)}, and the wheels of vLLM {release} and its "
        f"torch hold kernels from {shown(least)} on"
    )


def _refuse_dual_chunks(checkpoint: Checkpoint, version: VllmVersion, device: Device) -> None:
    """The first engine computed them by a backend of its own; the second has none, and reads the key all the same.

    Source: vllm#24048, vllm#33470 (FlashAttentionImpl gets a layer_idx), vllm 0.32 models/qwen2.py, qwen3.py and
    qwen3_moe.py; releases before 0.9 do not read it (vllm#11844, vllm#21452).
    """
    chunks = text_config(checkpoint.config).get("dual_chunk_attention_config")
    is_read = version.release >= (0, 9) and not version.is_v0_engine(device.compute_capability)
    if chunks is None or not is_read:
        return
    trained = chunks.get("original_max_position_embeddings") if isinstance(chunks, dict) else None
    reach = f"; it then serves the {trained:,} tokens that it was trained with" if isinstance(trained, int) else ""
    raise UsageError(
        f"{checkpoint.id} has dual-chunk attention, which vLLM's engine does not compute: remove "
        f"dual_chunk_attention_config from the config.json of a copy and name its folder{reach}. Or give --engine "
        "transformers"
    )


def _refuse_adapters(spec: ModelSpec, adapters: Adapters, version: VllmVersion, tensor_parallel_size: int) -> None:
    """Raises UsageError for adapters that vLLM would refuse at start-up."""
    modules = adapted_modules(spec, replace(adapters, targets=()), version, tensor_parallel_size)
    named = set(adapters.targets)
    if named and not adapted_modules(spec, adapters, version, tensor_parallel_size):
        raise UsageError(
            f"--lora-target-modules {','.join(adapters.targets)}: {spec.id} has no such module; it has "
            f"{', '.join(dict.fromkeys(module.name for module in modules))}"
        )
    if adapters.fully_sharded and adapters.max_rank % tensor_parallel_size:
        raise UsageError(
            f"--fully-sharded-loras: a rank of {adapters.max_rank} does not divide by {tensor_parallel_size} cards; "
            "leave it out"
        )
    if spec.vocab_size > _MOST_VOCABULARY and any(module.name == "lm_head" for module in modules):
        raise UsageError(f"--enable-lora: vLLM adapts an lm_head of {_MOST_VOCABULARY} entries at most")


def _refuse_spread_experts(checkpoint: Checkpoint, options: VllmOptions) -> None:
    """Of dense models the loss of one engine would end a whole server of several (docs/results/scale.md)."""
    given = "--enable-expert-parallel" if options.enable_expert_parallel else ""
    if (options.data_parallel_size or 1) > 1:
        given = f"--data-parallel-size {options.data_parallel_size}"
    if given and checkpoint.spec.moe is None:
        raise UsageError(
            f"{given} is for models with experts, and {checkpoint.id} has none; --replicas N starts N servers of it"
        )


def _refuse_what_no_attention_reads(options: VllmOptions, spec: ModelSpec, device: Device) -> None:
    """Source: vllm 0.32, FlashInfer from 8.0 on and Triton from 8.9 on read a cache in fp8.

    In NVFP4 FlashInfer alone does: FlashAttention 2's kernels on 8.x, 9.x and 12.x, where heads of 64 are misread, and
    TensorRT-LLM's on 10.x. Source: v1/attention/backends/flashinfer.py, supports_kv_cache_dtype, supports_combination.
    """
    asked, capability = options.kv_cache_dtype, device.compute_capability
    if asked.startswith("fp8") and capability is not None and capability < (8, 0):
        raise UsageError(f"--kv-cache-dtype {asked}: {device.name} has no attention kernel for it")
    if asked != "nvfp4":
        return
    if device.kind == "cpu" or capability is None or capability < (8, 0):
        raise UsageError(
            f"--kv-cache-dtype nvfp4: {device.name} has no attention kernel for it, which are for compute capability "
            "8.0 and later; leave it out, or give fp8 where the card reads it"
        )
    if spec.head_dim == 64 and capability[0] != 10:
        raise UsageError(
            f"--kv-cache-dtype nvfp4: vLLM's kernels for {device.name} misread heads of 64, and {spec.id} has them; "
            "give fp8"
        )
