"""Activations: the peak of vLLM's profile run."""

from __future__ import annotations

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.adapters import step_adapters
from qserve.engines.vllm.plan.memory.activations import (
    activation_peak,
    compile_peak,
    layer_streams,
    prompt_logprobs_bytes,
    sampler_bytes,
)
from qserve.engines.vllm.plan.memory.encoder import encoder_peak
from qserve.engines.vllm.plan.memory.pinned import cublas_workspace
from qserve.engines.vllm.plan.memory.unpacked import unpacked_layer_bytes
from qserve.engines.vllm.plan.sizing import Sizing
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["Activations", "step_extra_bytes"]


class Activations(TermKind[Sizing]):
    name, column, learned = "activations", "activations", "activations"

    def num_bytes(self, sizes: Sizing, stage: int) -> int:
        setup, spec = sizes.setup, sizes.spec
        return step_extra_bytes(sizes) + activation_peak(
            spec,
            sizes.device,
            sizes.version,
            sizes.max_num_seqs,
            sizes.max_num_batched_tokens,
            setup.tensor_parallel_size,
            encoder_tokens=sizes.encoder_tokens,
            compiles=sizes.compiles,
            is_eager=sizes.options.enforce_eager,
            drafts=sizes.drafts,
            is_packed=sizes.is_packed and spec.moe is None,
            unpacked_bytes=unpacked_layer_bytes(spec, sizes.quantization, setup.tensor_parallel_size),
        )

    def formula(self, sizes: Sizing, stage: int) -> str:
        parts = [_sampler(sizes), _widest_layer(sizes), *_compiler(sizes), *_encoder(sizes)]
        return f"the largest of: {'; '.join(parts)}{_beside(sizes)}"

    def source(self, sizes: Sizing) -> str:
        return "vLLM's profile run; start-up logs of 0.10 to 0.31"

    def band(self, sizes: Sizing, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.93), int(num_bytes * 1.15) + _fp4_experts(sizes)

    def is_shown(self, sizes: Sizing, num_bytes: int) -> bool:
        return True


def _fp4_experts(sizes: Sizing) -> int:
    moe = sizes.spec.moe
    if moe is None or not sizes.has_fp4_experts:
        return 0
    columns = sizes.max_num_batched_tokens * moe.num_experts_per_tok * sizes.spec.hidden_size
    return columns * constants.FP4_EXPERT_BYTES


def step_extra_bytes(sizes: Sizing) -> int:
    """What log-probabilities of prompts and adapters add to the peak, on a card and on a CPU."""
    tokens = sizes.max_num_batched_tokens
    logprobs = prompt_logprobs_bytes(sizes.spec, tokens) if sizes.setup.request.prompt_logprobs else 0
    return logprobs + step_adapters(sizes.setup, tokens)


def _sampler(sizes: Sizing) -> str:
    spec, seqs = sizes.spec, sizes.max_num_seqs
    each = sampler_bytes(spec, sizes.version, sizes.drafts)
    text = f"sampler {each}·{seqs}·{spec.vocab_size}"
    if each == constants.SAMPLER_BYTES_GREEDY:
        text += ", greedy"
    elif sizes.version.samples_with_triton:
        text += f" + 4·{min(sizes.device.sm_count, seqs)}·{spec.vocab_size} kept for top-k"
    base = format_bytes(constants.ACTIVATION_BASE.num_bytes)
    return f"{text} + 2·{sizes.max_num_batched_tokens}·{spec.hidden_size} + {base}"


def _widest_layer(sizes: Sizing) -> str:
    spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.setup.tensor_parallel_size
    streams = layer_streams(spec, sizes.version, ranks, sizes.is_eager)
    text = f"widest layer 2·{tokens}·(3·{spec.intermediate_size}/{ranks} + {streams})"
    if not (sizes.is_eager or sizes.version.runs_model_runner_v2(spec)):
        text += f" + {format_bytes(constants.ACTIVATION_MLP_BASE.num_bytes)}"
    if unpacked := unpacked_layer_bytes(spec, sizes.quantization, ranks):
        text += f" + {format_bytes(unpacked)} unpacked from 4 bit"
    return text


def _compiler(sizes: Sizing) -> list[str]:
    spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.setup.tensor_parallel_size
    num_bytes = compile_peak(spec, sizes.version, tokens, ranks) if sizes.compiles else 0
    copied = f"compiler, first start only, 2·{spec.vocab_size}·{spec.hidden_size}/{ranks}"
    return [f"{copied} + 4·{tokens}·{spec.hidden_size} = {format_bytes(num_bytes)}"] if num_bytes else []


def _encoder(sizes: Sizing) -> list[str]:
    images, ranks = sizes.encoder_tokens, sizes.setup.tensor_parallel_size
    if not images:
        return []
    peak = format_bytes(encoder_peak(sizes.spec, images, ranks))
    return [f"vision encoder on {images} tokens of images or video {peak}"]


def _beside(sizes: Sizing) -> str:
    """What is added to the largest part."""
    spec, tokens = sizes.spec, sizes.max_num_batched_tokens
    workspace = f"cuBLAS' workspace {format_bytes(cublas_workspace(sizes.device))}"
    if sizes.version.charges_what_is_gone:
        text = f"; {workspace} outlives it: no part of it, and off where the peak comes first"
    else:
        text = f" + {workspace}" + (" + two buffers of the fused experts" if spec.moe else "")
    if sizes.setup.request.prompt_logprobs:
        text += f" + prompt logprobs 4·{tokens}·{spec.vocab_size}"
    if adapted := step_adapters(sizes.setup, tokens):
        text += f" + adapters of routed tokens {format_bytes(adapted)}"
    return text
