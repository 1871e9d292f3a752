"""Each term of a vLLM account in words: the formula, its numbers, and where it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qserve.core.hardware import Device
from qserve.core.tensors import dtype_bytes
from qserve.planner.engines.vllm import constants
from qserve.planner.engines.vllm.adapters import adapter_term, step_adapters
from qserve.planner.engines.vllm.constants import STEP_VLLM_CPU
from qserve.planner.engines.vllm.layouts import stage_layers
from qserve.planner.engines.vllm.memory import activations as vllm
from qserve.planner.engines.vllm.memory.encoder import encoder_peak
from qserve.planner.engines.vllm.memory.pinned import cublas_workspace
from qserve.planner.engines.vllm.memory.unpacked import unpacked_layer_bytes
from qserve.planner.memory.kv import kv_bytes_per_token, kv_element_bytes, kv_scale_bytes
from qserve.planner.memory.rope import rope_cache_bytes
from qserve.planner.plan import Plan, Term
from qserve.planner.setup import Setup
from qserve.units import MIB, format_bytes

if TYPE_CHECKING:
    from qserve.planner.engines.vllm.estimate import VllmAccount

__all__ = ["traps", "vllm_terms", "weights_formula"]

_PLURALS = {"embedding": "embeddings", "lm_head": "lm_head", "linear": "linear layers", "expert": "experts"}


def vllm_terms(account: VllmAccount, device: Device, stage: int) -> tuple[Term, ...]:
    """The terms of one rank of a stage, in the order of the account, with low and high estimates."""
    if account.setup.on_cpu:
        return _cpu_terms(account, device)
    activations, graphs, cache = account.activations_bytes, account.cuda_graphs_bytes, max(0, account.cache_bytes)
    non_torch, context, setup = account.non_torch, account.context, account.setup
    graph_source = vllm.graph_bytes_per_layer(setup.spec, account.version)
    return (
        *_weights_terms(account, stage, ", in the blocks of torch's CUDA allocator"),
        Term(
            "KV cache", cache, _cache_formula(account, device), f"vLLM {setup.engine_version}, gpu_worker.py",
            max(0, int(cache * 0.97) - 200 * MIB), int(cache * 1.02) + 100 * MIB,
        ),
        Term(
            "activations", activations, _activations_formula(account, device),
            "vLLM's profile run; start-up logs of 0.10 to 0.31", int(activations * 0.93), int(activations * 1.15),
        ),
        Term("CUDA graphs", graphs, _graphs_formula(account), graph_source.source, graphs // 2, graphs * 3 // 2),
        Term(
            "non-torch", non_torch.num_bytes, _non_torch_formula(account),
            non_torch.source, non_torch.low_bytes, non_torch.high_bytes,
        ),
        *_kept_terms(account),
        Term(
            "CUDA context", context.num_bytes, "outside vLLM's own account, but on the card",
            context.source, context.low_bytes, context.high_bytes,
        ),
    )  # fmt: skip


def _kept_terms(account: VllmAccount) -> Iterator[Term]:
    """What stays on the card beside vLLM's own terms: counts that it overlooks, a segment that it can't return."""
    if counts := account.uncharged_bytes:
        yield Term(
            "penalties", counts, f"{_counts_formula(account)}, held but in no account of this release",
            "vllm v1/worker/gpu/sample/penalties.py", counts, counts,
        )  # fmt: skip
    if buffers := account.kept_buffers_bytes:
        spec, version, tokens = account.setup.spec, account.version, account.max_num_batched_tokens
        rows = vllm.sampler_buffer(spec, account.setup.devices[0], version, account.max_num_seqs)
        experts = f"two buffers of the fused experts for {tokens} tokens" if spec.moe else ""
        top_k = f"rows of top-k {format_bytes(rows)}" if rows else ""
        yield Term(
            "kept buffers", buffers, f"{' + '.join(filter(None, (experts, top_k)))}, kept after the profile run",
            "vllm TritonExperts.workspace_shapes, topk_topp_triton.py; mem_utils.py", buffers, buffers,
        )  # fmt: skip
    if pinned := account.pinned_bytes:
        yield Term(
            "pinned segment", pinned,
            "the embedding's copy, first start only: cuBLAS put its workspace in it, and a later start has it free",
            "torch CUDACachingAllocator.cpp, CublasHandlePool.cpp; vllm#54122", 0, pinned,
        )  # fmt: skip


def _weights_terms(account: VllmAccount, stage: int = 0, suffix: str = "") -> Iterator[Term]:
    """The model's own weights, and adapters' buffers where there are any."""
    setup, buffers, added = account.setup, account.deepstack_bytes, account.adapter_bytes[stage]
    weights_bytes = account.held_weights(stage) - added
    is_from_headers = setup.checkpoint.tensors and setup.spec is setup.checkpoint.spec
    source = ("safetensors headers" if is_from_headers else "dimensions") + suffix
    low, high = int(weights_bytes * 0.995), int(weights_bytes * 1.01)
    formula = weights_formula(setup) + (f" + {format_bytes(buffers)} deepstack buffers of a step" if buffers else "")
    yield Term("weights", weights_bytes, formula, source, low, high)
    if added:
        yield adapter_term(setup, added, stage)


def _cpu_terms(account: VllmAccount, device: Device) -> tuple[Term, ...]:
    """Resident memory of vLLM's processes: no card, no graphs, and what repacking leaves."""
    setup, spec, steps = account.setup, account.setup.spec, account.max_num_batched_tokens
    activations, cache, repacking = account.activations_bytes, max(0, account.cache_bytes), account.repacking_bytes
    element, copies = dtype_bytes(setup.dtype), 1 if spec.head.kind == "score" else 2
    python = account.non_torch
    layer = f"{element}·{steps}·(3·{spec.intermediate_size} + 2·{spec.hidden_size})"
    sampler = f"14·{account.max_num_seqs}·{spec.vocab_size}"
    return (
        *_weights_terms(account),
        Term(
            "KV cache", cache, _cache_formula(account, device), "all of it is touched at start-up: vllm cpu_worker.py",
            cache, cache,
        ),
        Term(
            "activations", activations, f"widest layer {layer} + sampler {sampler} + first steps 60 MiB",
            STEP_VLLM_CPU.source, activations // 2, activations * 2,
        ),
        Term(
            "repacking", repacking,
            f"{copies} packed × {spec.vocab_size} × {spec.hidden_size} × {element} B (embedding, lm_head), and a hole "
            "of one block a layer in the C library's heap",
            "vllm vocab_parallel_embedding.py; measured on three shapes", repacking // 2, repacking * 5 // 4,
        ),
        Term(
            "Python", python.num_bytes, "API server, engine core and worker before the model",
            python.source, python.low_bytes, python.high_bytes,
        ),
    )  # fmt: skip


def weights_formula(setup: Setup) -> str:
    """Bytes by role: what each kind of tensor takes before it is shared out."""
    sizes: Counter[str] = Counter()
    for tensor in setup.tensors:
        sizes[_PLURALS.get(tensor.role, "norms and the rest")] += tensor.nbytes
    parts = " + ".join(f"{format_bytes(size)} {name}" for name, size in sizes.most_common())
    in_flight = f", linear layers quantized to {setup.quant.scheme} while loading" if setup.in_flight else ""
    shared = f", over {setup.num_ranks} ranks" if setup.num_ranks > 1 else ""
    rotary = format_bytes(rope_cache_bytes(setup.spec, setup.dtype)) if setup.engine == "vllm" else ""
    return f"{parts}{in_flight}{shared}" + (f" + {rotary} rotary table" if rotary else "")


def _cache_formula(account: VllmAccount, device: Device) -> str:
    setup, spec, layout = account.setup, account.setup.spec, account.layout
    cache_dtype = setup.request.kv_cache_dtype
    element = kv_element_bytes(cache_dtype, setup.dtype)
    token = kv_bytes_per_token(spec, element, setup.tensor_parallel_size, kv_scale_bytes(cache_dtype))
    heads = max(1, spec.num_key_value_heads // setup.tensor_parallel_size)
    layers = spec.num_full_layers + spec.num_sliding_layers
    pages = f"a block of {layout.block_tokens} tokens is {format_bytes(layout.block_bytes)}"
    state = f", and a sequence pins {layout.state_blocks} more for its linear layers" if layout.state_blocks else ""
    sizes = f"2 × {layers} layers × {heads} KV heads × {spec.head_dim} × {element} B = {format_bytes(token)} a token"
    if setup.request.kv_cache_memory_bytes is not None:
        return f"as asked by --kv-cache-memory-bytes; {sizes}; {pages}{state}"
    graphs = " − graphs" if account.subtracts_cuda_graphs else ""
    share = f"{format_bytes(device.total_bytes)} × {account.gpu_memory_utilization:g}"
    if setup.on_cpu:
        return f"a third of what {share} leaves in whole GiB, or one sequence of full length; {sizes}; {pages}{state}"
    return f"{share} − weights − activations − non-torch{graphs}; {sizes}; {pages}{state}"


def _compiler_bytes(account: VllmAccount) -> int:
    """What compiling takes inside the profile run of a first start."""
    if not account.compiles:
        return 0
    tokens, ranks = account.max_num_batched_tokens, account.setup.tensor_parallel_size
    return vllm.compile_peak(account.setup.spec, account.version, tokens, ranks)


def _activations_formula(account: VllmAccount, device: Device) -> str:
    spec, tokens = account.setup.spec, account.max_num_batched_tokens
    seqs, ranks = account.max_num_seqs, account.setup.tensor_parallel_size
    is_eager = account.setup.request.enforce_eager or account.version.is_v0_engine(device.compute_capability)
    drafts = account.setup.request.num_speculative_tokens > 0
    each = vllm.sampler_bytes(spec, account.version, drafts)
    sampler = f"{each}·{seqs}·{spec.vocab_size}"
    if each == constants.SAMPLER_BYTES_GREEDY:
        sampler += ", greedy"
    elif account.version.samples_with_triton:
        sampler += f" + 4·{min(device.sm_count, seqs)}·{spec.vocab_size} kept for top-k"
    base = format_bytes(constants.ACTIVATION_BASE.num_bytes)
    streams = vllm.layer_streams(spec, account.version, ranks, is_eager)
    layer = f"2·{tokens}·(3·{spec.intermediate_size}/{ranks} + {streams})"
    if not (is_eager or account.version.runs_model_runner_v2(spec)):
        layer += f" + {format_bytes(constants.ACTIVATION_MLP_BASE.num_bytes)}"
    if unpacked := unpacked_layer_bytes(spec, account.quantization, ranks):
        layer += f" + {format_bytes(unpacked)} unpacked from 4 bit"
    parts = [f"sampler {sampler} + 2·{tokens}·{spec.hidden_size} + {base}", f"widest layer {layer}"]
    if compiler := _compiler_bytes(account):
        copied = f"compiler, first start only, 2·{spec.vocab_size}·{spec.hidden_size}/{ranks}"
        parts.append(f"{copied} + 4·{tokens}·{spec.hidden_size} = {format_bytes(compiler)}")
    if images := account.encoder_tokens:
        parts.append(
            f"vision encoder on {images} tokens of images or video {format_bytes(encoder_peak(spec, images, ranks))}"
        )
    workspace = f"cuBLAS' workspace {format_bytes(cublas_workspace(device))}"
    if account.version.charges_what_is_gone:
        extra = f"; {workspace} outlives it: no part of it, and off where the peak comes first"
    else:
        extra = f" + {workspace}" + (" + two buffers of the fused experts" if spec.moe else "")
    if account.setup.request.prompt_logprobs:
        extra += f" + prompt logprobs 4·{tokens}·{spec.vocab_size}"
    if adapted := step_adapters(account.setup, tokens):
        extra += f" + adapters of routed tokens {format_bytes(adapted)}"
    return f"the largest of: {'; '.join(parts)}{extra}"


def _non_torch_formula(account: VllmAccount) -> str:
    libraries = f"driver libraries, cuBLAS, NCCL over {account.setup.num_ranks} rank(s)"
    if not account.penalty_bytes or account.uncharged_bytes:
        return libraries
    return f"{libraries} + {_counts_formula(account)} = {format_bytes(account.penalty_bytes)}"


def _counts_formula(account: VllmAccount) -> str:
    return f"counts for penalties {account.max_num_seqs}·{account.setup.spec.vocab_size}·(4 + 1/8)"


def _graphs_formula(account: VllmAccount) -> str:
    if not account.cuda_graphs_bytes:
        return "none"
    later = max(0, account.captures.num_graphs - account.captures.num_modes)
    layers = max(stage_layers(account.setup.spec, account.setup.pipeline_parallel_size))
    first, each = constants.GRAPH_BYTES_FIRST, vllm.graph_bytes_per_layer(account.setup.spec, account.version)
    plain = f"{format_bytes(first.num_bytes)} + {later} more graphs × {layers} layers × {format_bytes(each.num_bytes)}"
    once = account.unpacked_in_graphs
    unpacked = f" + {format_bytes(once)} of experts unpacked from 4 bit" if once else ""
    if not account.setup.request.enable_lora:
        return plain + unpacked
    factor = f"{constants.ADAPTER_GRAPHS:g}"
    if not account.version.captures_without_adapters:
        return f"({plain}) × {factor} with adapters{unpacked}"
    return f"({plain}) × (1 + {factor}): each is captured without and with adapters (vllm#25914){unpacked}"


def traps(setup: Setup, plan: Plan) -> tuple[str, ...]:
    """What write-ups on fitting models get wrong, said with this plan's numbers."""
    vocab, tokens = setup.spec.vocab_size, plan.workload.max_num_batched_tokens
    logprobs = format_bytes(vllm.prompt_logprobs_bytes(setup.spec, tokens))
    lines = [
        "bf16 takes the same bytes as fp16; what it saves is overflows",
        "with SDPA or flash attention no length × length matrix is kept: activations grow linearly with the tokens of "
        "a step, and halving max_model_len halves a sequence's cache, not the whole",
        f"prompt log-probabilities (lm-eval) need tokens × vocabulary × 4 B more: {logprobs} at a step of {tokens}",
    ]
    if plan.engine == "vllm" and plan.placement.gpu_memory_utilization:
        seqs = format_bytes(constants.SAMPLER_BYTES_TRITON * 256 * vocab)
        lines = [
            "gpu_memory_utilization is a share of the whole card, not of what is free; raising it gives the engine "
            "more and takes it from every neighbour (a trainer, a second engine)",
            "kv_cache_memory_bytes sets the cache itself: vLLM then ignores the share, and start-up no longer depends "
            "on what else moves on the card",
            f"every 256 sequences of max_num_seqs cost {seqs} of sampler peak with a vocabulary of {vocab}",
            *lines,
        ]
    return tuple(lines)
