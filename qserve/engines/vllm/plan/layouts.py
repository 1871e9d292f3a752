"""How many ranks a model splits into: the divisibility rules of tensor parallelism, and pipeline stages."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from qserve.core.model_spec import ModelSpec
from qserve.core.release import parse_release
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor
from qserve.engines.vllm.plan.options import VllmOptions
from qserve.engines.vllm.plan.versions import TESTED_RELEASE
from qserve.errors import UsageError
from qserve.planner.request import PlanRequest

__all__ = ["layouts", "stage_layers", "stage_tensors", "why_not_divisible"]

_FINER_BLOCKS = (0, 30)
"""From here on an FP8 block of experts may be cut into finer ones, of 32 or more: vLLM's oracle/fp8.py,
refine_fp8_moe_block_shape. Before, creating the weights failed (vllm#17569). A log of 0.30.0 has "FP8 MoE block scales
refined", of experts of 640 over two ranks (public repository index, repository not recorded, id 71287676020)."""

_LAYER = re.compile(r"\.(?:layers|h)\.(\d+)\.")


def layouts(spec: ModelSpec, num_devices: int, request: PlanRequest) -> Iterator[tuple[int, int]]:
    """(tensor, pipeline) parallel sizes worth trying, fewest cards first, any tensor parallelism before stages.

    Stages take turns: of four cards one works at a time for a single request, where four ranks work at once.

    Nothing where a size that the user fixed can't divide the model (`why_not_divisible` says why). Raises UsageError
    when it needs more cards than there are.
    """
    options = request.of(VllmOptions)
    fixed_tensor, fixed_pipeline = options.tensor_parallel_size, options.pipeline_parallel_size
    if (fixed_tensor or 1) * (fixed_pipeline or 1) > num_devices:
        raise UsageError(
            f"--tensor-parallel-size {fixed_tensor or 1} with --pipeline-parallel-size {fixed_pipeline or 1} needs "
            f"{(fixed_tensor or 1) * (fixed_pipeline or 1)} cards, but there are {num_devices}; "
            "lower them, or describe more cards: --gpu NAME:COUNT"
        )
    pairs = [
        (tensor, pipeline)
        for tensor in ([fixed_tensor] if fixed_tensor else range(1, num_devices + 1))
        for pipeline in ([fixed_pipeline] if fixed_pipeline else range(1, num_devices // tensor + 1))
        if tensor * pipeline <= num_devices
        and pipeline <= (1 if spec.ngrams else spec.num_hidden_layers)
        and not why_not_divisible(spec, tensor, request.engine_version, whole_experts=options.enable_expert_parallel)
    ]
    yield from sorted(pairs, key=lambda pair: (pair[1], pair[0]))


def why_not_divisible(
    spec: ModelSpec, tensor_parallel_size: int, engine_version: str | None = None, *, whole_experts: bool = False
) -> str | None:
    """The dimension that `tensor_parallel_size` ranks can't share; None when they can. KV heads may replicate.

    `engine_version` is vLLM's release, the supported one by default: it decides what may cut a block of FP8 weights.
    `whole_experts`: each rank holds some of the experts instead of a shard of each (--enable-expert-parallel).
    """
    ranks = tensor_parallel_size
    if ranks > 1 and spec.quantization and SCHEMES[spec.quantization.scheme].by_bitsandbytes:
        return f"weights stored as {spec.quantization.scheme} don't split, bitsandbytes made them whole"
    for name, size, module in _shared_sizes(spec, whole_experts):
        if size % ranks:
            return f"{size} {name} don't divide by {ranks}"
        cut = _cut(spec, module, size // ranks, engine_version) if module and ranks > 1 else None
        if cut:
            return f"{size} {name} over {ranks} ranks cut {cut}"
    heads = spec.num_key_value_heads
    if heads % ranks and ranks % heads:
        return f"{heads} KV heads neither divide by {ranks} nor replicate evenly"
    return None


def _shared_sizes(spec: ModelSpec, whole_experts: bool) -> list[tuple[str, int, str]]:
    """What ranks share: its name, how many, and of columns the row-parallel layer that takes them in."""
    sizes = [
        ("attention heads", spec.num_attention_heads, ""),
        ("attention columns", spec.num_attention_heads * spec.head_dim, "self_attn.o_proj"),
    ]
    if spec.intermediate_size and (spec.moe is None or spec.moe.sparse_layers < spec.num_hidden_layers):
        sizes.append(("MLP columns", spec.intermediate_size, "mlp.down_proj"))
    if spec.moe:
        shared = spec.moe.shared_expert_intermediate_size
        if not whole_experts:
            sizes.append(("expert columns", spec.moe.moe_intermediate_size, "mlp.experts.0.down_proj"))
        sizes.append(("shared expert's columns", shared, "mlp.shared_expert.down_proj"))
    if spec.linear_attention:
        sizes.append(("linear-attention key heads", spec.linear_attention.num_key_heads, ""))
    return sizes


def _cut(spec: ModelSpec, module: str, columns: int, engine_version: str | None) -> str | None:
    """What of the module's stored scales a rank with `columns` of its inputs would get a part of; None: nothing.

    Source: vLLM's marlin_utils.py (verify_marlin_supports_shape) and validate_fp8_block_shape(_moe).
    """
    last = spec.num_hidden_layers - 1
    stored = spec.quantization.of_module(f"model.layers.{last}.{module}") if spec.quantization else None
    if stored is None:
        return None
    if stored.group_size and columns % stored.group_size:
        return f"quantization groups of {stored.group_size}"
    if stored.block and columns % stored.block:
        release = parse_release(engine_version or TESTED_RELEASE)
        finer = math.gcd(stored.block, columns, spec.hidden_size)
        if "experts." not in module or release < _FINER_BLOCKS or finer < 32:
            return f"FP8 blocks of {stored.block}"
    return None


def stage_layers(spec: ModelSpec, pipeline_parallel_size: int) -> tuple[int, ...]:
    """Layers of each stage. What doesn't divide goes to the stages before the last, from the back, as vLLM does it."""
    base, rest = divmod(spec.num_hidden_layers, pipeline_parallel_size)
    layers = [base] * pipeline_parallel_size
    for offset in range(2, rest + 2):
        layers[-offset] += 1
    return tuple(layers)


def stage_tensors(spec: ModelSpec, tensors: tuple[Tensor, ...], stage: int, num_stages: int) -> tuple[Tensor, ...]:
    """A stage's share: its layers, embeddings and vision encoder on the first, final norm and head on the last.

    Tensors of a header belong to the layer in their name; repeated ones (from dimensions) are shared out by number.
    """
    if num_stages == 1:
        return tensors
    counts = stage_layers(spec, num_stages)
    first = sum(counts[:stage])
    own = range(first, first + counts[stage])
    picked = (_stage_part(spec, tensor, stage, num_stages, own) for tensor in tensors)
    return tuple(tensor for tensor in picked if tensor is not None)


def _stage_part(spec: ModelSpec, tensor: Tensor, stage: int, num_stages: int, own: range) -> Tensor | None:
    role = tensor.role
    if role in ("embedding", "vision", "audio"):
        tied_copy = role == "embedding" and spec.tie_word_embeddings and stage == num_stages - 1
        return tensor if stage == 0 or tied_copy else None
    layer = _LAYER.search(tensor.name)
    if layer is None or role == "mtp":
        return tensor if stage == num_stages - 1 else None
    if tensor.repeat == 1:
        return tensor if int(layer[1]) in own else None
    repeat = round(tensor.repeat * len(own) / spec.num_hidden_layers)
    return replace(tensor, repeat=repeat, nbytes=tensor.nbytes * repeat // tensor.repeat) if repeat else None
