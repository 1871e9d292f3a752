"""The activation peak of vLLM's profile run on a card, and what of it stays when the run is over."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.encoder import NO_ITEMS, ProfiledItems, embedding_bytes, encoder_peak
from qserve.engines.vllm.plan.step_buffers import stream_widths
from qserve.engines.vllm.plan.terms.adapters import step_adapters
from qserve.engines.vllm.plan.terms.bnb_scratch import layer_scratch_bytes
from qserve.engines.vllm.plan.trial import Trial
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner.memory.allocator import cublas_workspace
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = [
    "Activations",
    "activation_peak",
    "compile_peak",
    "layer_streams",
    "moe_workspace",
    "prompt_logprobs_bytes",
    "sampler_buffer",
    "sampler_bytes",
    "step_extra_bytes",
]

_ACTIVATION_BYTES = 2  # bf16 and fp16 alike


def activation_peak(
    spec: ModelSpec,
    device: Device,
    version: VllmVersion,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    tensor_parallel_size: int = 1,
    profiled_items: ProfiledItems = NO_ITEMS,
    compiles: bool = True,
    is_eager: bool = False,
    drafts: bool = False,
    is_packed: bool = False,
    scratch_bytes: int = 0,
    takes_media: bool = True,
) -> int:
    """Peak of vLLM's profile run on one rank: sampler, widest layer, compiler or encoder, whichever is more.

    sampler: 14·S·V + `sampler_buffer` + 2·T·H + base (before 0.17 without the buffer, and 38·S·V unless FlashInfer
    samples; 2·S·V in the second model runner, which profiles greedy requests up to 0.32, 6·S·V + `sampler_buffer` from
    0.33 on; 26·S·V or 46·S·V where the first runner verifies `drafts`)
    layer: 2·T·(3I/tp + `layer_streams`) + base + `scratch_bytes`; fused experts keep two buffers beside it.
    compiler: `compile_peak`, where the engine `compiles` (not with --enforce-eager).
    encoder: `encoder_peak` of the `profiled_items`.

    cuBLAS' workspace is part of it from its first product on: of the first layer, or of lm_head where linears
    `is_packed`. From 0.27 on what outlives the run is no part of the peak, but of what is gone. Source: vllm
    mem_utils.py, transient_peak_headroom.
    """
    experts = moe_workspace(spec, version, max_num_batched_tokens, tensor_parallel_size)
    encoder = encoder_peak(spec, profiled_items, tensor_parallel_size, version.gathers_encoder_heads)
    embeddings = embedding_bytes(spec, profiled_items.total)
    workspace = cublas_workspace(device)
    is_eager = is_eager or version.is_v0_engine(device.compute_capability)
    language = max(
        _sampler_peak(spec, device, version, max_num_seqs, max_num_batched_tokens, drafts) + workspace,
        _layer_peak(spec, version, max_num_batched_tokens, tensor_parallel_size, is_eager)
        + scratch_bytes
        + (0 if is_packed else workspace),
        compile_peak(spec, version, max_num_batched_tokens, tensor_parallel_size, takes_media) if compiles else 0,
    )
    if not version.charges_what_is_gone:
        return max(encoder, language + experts + embeddings)
    kept = experts + sampler_buffer(spec, device, version, max_num_seqs)
    return max(encoder, language - workspace + experts + embeddings) - kept


def sampler_bytes(spec: ModelSpec, version: VllmVersion, drafts: bool = False) -> int:
    """Bytes of the profiled sampler per sequence and vocabulary entry; `drafts`: with the rejection sampler."""
    if version.runs_model_runner_v2(spec):
        return constants.SAMPLED_BYTES if version.profiles_sampled_steps else constants.SAMPLER_BYTES_GREEDY
    if version.samples_with_flashinfer and not drafts:
        return constants.SAMPLER_BYTES_FLASHINFER
    if not version.samples_with_triton:
        return constants.SAMPLER_BYTES_SORT + (constants.SAMPLER_BYTES_BONUS if drafts else 0)
    return constants.SAMPLER_BYTES_REJECTION if drafts else constants.SAMPLER_BYTES_TRITON


def sampler_buffer(spec: ModelSpec, device: Device, version: VllmVersion, num_seqs: int) -> int:
    """What top-k and top-p keep for good: a row of the vocabulary in fp32 for each SM, or sequence if those are fewer.

    Source: vllm v1/sample/ops/topk_topp_triton.py, _TRITON_BUFFER_CACHE.
    """
    is_greedy = version.runs_model_runner_v2(spec) and not version.profiles_sampled_steps
    if spec.head.kind == "score" or is_greedy or not version.samples_with_triton:
        return 0
    return 4 * min(device.sm_count, num_seqs) * spec.vocab_size


def layer_streams(spec: ModelSpec, version: VllmVersion, tensor_parallel_size: int = 1, is_eager: bool = False) -> int:
    """Elements per token that stand beside gate, up and their product.

    Eagerly Python's names keep four tensors of T·H: the residual, the layer's input that the model's loop still names,
    what attention returned, and down_proj's output; of several ranks also the sum over them. Source: vllm qwen2.py
    (Qwen2Model.forward, Qwen2MLP.forward). Compiled code drops a tensor when it is done with it, but a piece of the
    graph has its inputs to the end: the residual before and after, and what attention returned. The first runner was
    measured with two tensors and `ACTIVATION_MLP_BASE`.
    """
    if is_eager:
        return (4 + (tensor_parallel_size > 1)) * spec.hidden_size
    attention = spec.num_attention_heads * spec.head_dim // tensor_parallel_size
    return 2 * spec.hidden_size + (attention if version.runs_model_runner_v2(spec) else 0)


def compile_peak(
    spec: ModelSpec, version: VllmVersion, num_tokens: int, tensor_parallel_size: int = 1, takes_media: bool = True
) -> int:
    """A copy of the embedding and two residual streams: V·H·2/tp + 4·T·H. 0 where the embedding isn't compiled.

    The first start of a configuration compiles inside the profile run. Inductor's benchmark of the combined kernels
    makes random tensors in the shape of everything they read, the embedding among it; a second start loads the
    compiled code and has this memory for its cache. A model that `takes_media` is given embeddings: its own are looked
    up outside of the compiled graph. One that could and takes none (--language-model-only) is given token ids.
    Source: vllm config/compilation.py (benchmark_combo_kernel), gpu_model_runner.py (supports_mm_inputs), vllm#54122,
    vllm#54383.
    """
    is_outside = (spec.vision or spec.audio) is not None and takes_media
    if is_outside or not (version.compiles_inside_profile and spec.family.vllm.is_compiled):
        return 0
    embedding = spec.vocab_size * spec.hidden_size * _ACTIVATION_BYTES // tensor_parallel_size
    return embedding + 2 * num_tokens * spec.hidden_size * _ACTIVATION_BYTES


def prompt_logprobs_bytes(spec: ModelSpec, num_tokens: int) -> int:
    """fp32 log-probabilities of a whole prompt step: `echo` with `logprobs`, as lm-eval asks."""
    return num_tokens * spec.vocab_size * 4


def _sampler_peak(
    spec: ModelSpec, device: Device, version: VllmVersion, num_seqs: int, num_tokens: int, drafts: bool
) -> int:
    hidden = num_tokens * spec.hidden_size * _ACTIVATION_BYTES
    base = constants.ACTIVATION_BASE.num_bytes + hidden
    if spec.head.kind == "score":  # a pooling model samples nothing
        return base
    rows = min(num_seqs, num_tokens) * spec.vocab_size
    return sampler_bytes(spec, version, drafts) * rows + base + sampler_buffer(spec, device, version, num_seqs)


def _layer_peak(
    spec: ModelSpec, version: VllmVersion, num_tokens: int, tensor_parallel_size: int, is_eager: bool
) -> int:
    widths = _layer_widths(spec, version, tensor_parallel_size, is_eager)
    has_base = not (is_eager or version.runs_model_runner_v2(spec))
    return num_tokens * widths * _ACTIVATION_BYTES + has_base * constants.ACTIVATION_MLP_BASE.num_bytes


def _layer_widths(spec: ModelSpec, version: VllmVersion, tensor_parallel_size: int, is_eager: bool) -> int:
    """Elements per token of the widest layer."""
    streams = layer_streams(spec, version, tensor_parallel_size, is_eager)
    widths = 3 * spec.intermediate_size // tensor_parallel_size + streams
    linear = spec.linear_attention
    if linear:  # projections of Gated DeltaNet, and a state of k_dim × v_dim per chunk of 64 tokens
        chunk = linear.num_value_heads * linear.key_head_dim * linear.value_head_dim // 64
        widths = max(widths, (2 * (linear.conv_dim + linear.value_dim) + chunk) // tensor_parallel_size)
    return stream_widths(spec, widths)


def moe_workspace(spec: ModelSpec, version: VllmVersion, num_tokens: int, tensor_parallel_size: int = 1) -> int:
    """T·top_k·(max(I, H) + max(2I, H))·2: two buffers. Source: vllm TritonExperts.workspace_shapes."""
    moe = spec.moe
    if moe is None or not version.keeps_moe_workspace:
        return 0
    inner = moe.moe_intermediate_size // tensor_parallel_size
    widths = max(inner, spec.hidden_size) + max(2 * inner, spec.hidden_size)
    return num_tokens * moe.num_experts_per_tok * widths * _ACTIVATION_BYTES


class Activations(TermKind[Trial]):
    name, column, learned = "activations", "activations", "activations"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        candidate, spec = sizes.candidate, sizes.spec
        return step_extra_bytes(sizes) + activation_peak(
            spec,
            sizes.device,
            sizes.version,
            sizes.max_num_seqs,
            sizes.max_num_batched_tokens,
            candidate.tensor_parallel_size,
            profiled_items=sizes.profiled_items,
            compiles=sizes.compiles,
            is_eager=sizes.options.enforce_eager,
            drafts=sizes.drafts,
            is_packed=sizes.is_packed and spec.moe is None,
            scratch_bytes=layer_scratch_bytes(spec, sizes.quantization, candidate.tensor_parallel_size),
            takes_media=sizes.takes_media,
        )

    def formula(self, sizes: Trial, stage: int) -> str:
        parts = [_sampler(sizes), _widest_layer(sizes), *_compiler(sizes), *_encoder(sizes)]
        return f"the largest of: {'; '.join(parts)}{_beside(sizes)}"

    def source(self, sizes: Trial) -> str:
        return "vLLM's profile run; start-up logs of 0.10 to 0.31"

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return int(num_bytes * 0.93), int(num_bytes * 1.15) + _fp4_experts(sizes)

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _fp4_experts(sizes: Trial) -> int:
    moe = sizes.spec.moe
    if moe is None or not sizes.has_fp4_experts:
        return 0
    columns = sizes.max_num_batched_tokens * moe.num_experts_per_tok * sizes.spec.hidden_size
    return columns * constants.FP4_EXPERT_BYTES


def step_extra_bytes(sizes: Trial) -> int:
    """What log-probabilities of prompts and adapters add to the peak, on a card and on a CPU."""
    tokens = sizes.max_num_batched_tokens
    logprobs = prompt_logprobs_bytes(sizes.spec, tokens) if sizes.candidate.request.prompt_logprobs else 0
    return logprobs + step_adapters(sizes.candidate, tokens)


def _sampler(sizes: Trial) -> str:
    spec, seqs = sizes.spec, sizes.max_num_seqs
    each = sampler_bytes(spec, sizes.version, sizes.drafts)
    text = f"sampler {each}·{seqs}·{spec.vocab_size}"
    if each == constants.SAMPLER_BYTES_GREEDY:
        text += ", greedy"
    elif sizes.version.samples_with_triton:
        text += f" + 4·{min(sizes.device.sm_count, seqs)}·{spec.vocab_size} kept for top-k"
    base = format_bytes(constants.ACTIVATION_BASE.num_bytes)
    return f"{text} + 2·{sizes.max_num_batched_tokens}·{spec.hidden_size} + {base}"


def _widest_layer(sizes: Trial) -> str:
    spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.candidate.tensor_parallel_size
    streams = layer_streams(spec, sizes.version, ranks, sizes.is_eager)
    if spec.streams:
        text = f"widest layer 2·{tokens}·{_layer_widths(spec, sizes.version, ranks, sizes.is_eager)}, "
        text += f"with {spec.streams.count} residual streams"
    else:
        text = f"widest layer 2·{tokens}·(3·{spec.intermediate_size}/{ranks} + {streams})"
    if not (sizes.is_eager or sizes.version.runs_model_runner_v2(spec)):
        text += f" + {format_bytes(constants.ACTIVATION_MLP_BASE.num_bytes)}"
    if unpacked := layer_scratch_bytes(spec, sizes.quantization, ranks):
        text += f" + {format_bytes(unpacked)} unpacked from 4 bit"
    return text


def _compiler(sizes: Trial) -> list[str]:
    spec, tokens, ranks = sizes.spec, sizes.max_num_batched_tokens, sizes.candidate.tensor_parallel_size
    num_bytes = compile_peak(spec, sizes.version, tokens, ranks, sizes.takes_media) if sizes.compiles else 0
    copied = f"compiler, first start only, 2·{spec.vocab_size}·{spec.hidden_size}/{ranks}"
    return [f"{copied} + 4·{tokens}·{spec.hidden_size} = {format_bytes(num_bytes)}"] if num_bytes else []


def _encoder(sizes: Trial) -> list[str]:
    items, ranks = sizes.profiled_items, sizes.candidate.tensor_parallel_size
    if not items.count:
        return []
    peak = format_bytes(encoder_peak(sizes.spec, items, ranks, sizes.version.gathers_encoder_heads))
    if items.kind == "audio":
        return [f"audio encoder on {items.count} × 30 s {peak}"]
    return [f"vision encoder on {items.total} tokens of images or video {peak}"]


def _beside(sizes: Trial) -> str:
    """What is added to the largest part."""
    spec, tokens = sizes.spec, sizes.max_num_batched_tokens
    workspace = f"cuBLAS' workspace {format_bytes(cublas_workspace(sizes.device))}"
    if sizes.version.charges_what_is_gone:
        text = f"; {workspace} outlives it: no part of it, and off where the peak comes first"
    else:
        text = f" + {workspace}" + (" + two buffers of the fused experts" if spec.moe else "")
    if sizes.candidate.request.prompt_logprobs:
        text += f" + prompt logprobs 4·{tokens}·{spec.vocab_size}"
    if adapted := step_adapters(sizes.candidate, tokens):
        text += f" + adapters of routed tokens {format_bytes(adapted)}"
    return text
