"""Weights from disk into memory, as the plan says, with each thing that can be wrong said in one sentence."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qserve.errors import BrokenCheckpoint
from qserve.hub.folder import read_config
from qserve.model.checkpoint_errors import check_files, explain
from qserve.model.cpu.activations import rounded_activations
from qserve.model.cpu.matrix import use_own_threads
from qserve.model.cpu.padded_rows import bound_kernels, pad_linear_layers
from qserve.model.cuda.trial import use_card_products
from qserve.model.dummy import NOISE_NOTE, empty_model, random_weights, stand_in_tokenizer
from qserve.model.fp8.experts_trial import use_grouped_experts
from qserve.model.fp8.trial import use_fp8_products
from qserve.model.layer_stream import stream_offloaded
from qserve.model.load_cost import LoadCost, LoadMeter
from qserve.model.mapped import MappedFiles, releasing, return_large_blocks, trim_heap
from qserve.model.measured_weights import weights_bytes
from qserve.model.packed_cache.folder import PackedFolder
from qserve.model.packed_cache.layers import Layers, packed_layers
from qserve.model.packed_cache.placing import Misplaced, placing
from qserve.model.packed_cache.start import packed_start
from qserve.model.packed_linear import compile_quantized, pack_linears, set_tied_head
from qserve.model.placement import placement_arguments
from qserve.model.quality import QuantQuality
from qserve.model.quantize import (
    by_bitsandbytes,
    in_flight_config,
    left_in_16_bit,
    quantizer,
    quantizing_in_flight,
    quiet_bitsandbytes,
    repack_quantized,
)
from qserve.model.stored.arguments import configured, stored_arguments
from qserve.model.stored.embedding import map_embedding
from qserve.model.stored.linear import compile_stored
from qserve.planner.plan import Plan

__all__ = ["DTYPES", "LoadFormat", "LoadedModel", "load", "load_tokenizer", "weights_bytes"]

# What belongs to a quantized weight: a model that does not take it reads the packed numbers as if they were weights.
_SCALE = re.compile(r"(SCB|absmax|quant_map|quant_state\.\w+|weight_scale(_inv)?|scales|qzeros|g_idx|weight_packed)$")

LoadFormat = Literal["auto", "dummy"]
_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """A model that is ready to run, and what loading it took.

    `weights_bytes` are counted from what is in memory, each shared tensor once. `notes` are for the user: what was not
    done as its name says, and why. `quality` is there where it was asked for (`verify.verify_quant`).
    """

    model: Any
    tokenizer: Any
    weights_bytes: int
    attention: str
    cost: LoadCost = field(default_factory=LoadCost)
    notes: tuple[str, ...] = ()
    quality: QuantQuality | None = None


def load(
    folder: Path,
    plan: Plan,
    load_format: LoadFormat = "auto",
    on_progress: Callable[[float], None] = lambda share: None,
    packed: PackedFolder | None = None,
) -> LoadedModel:
    """The causal language model and tokenizer of `folder`, in the plan's dtype and quantization, where the plan says.

    With `load_format` "dummy" the folder needs a config.json and nothing else: weights are random, and a tokenizer that
    is not there is stood in for. `on_progress` hears the share of the tensors that is done. Quantized weights in the
    form that a CPU computes with are kept in `packed`, and found there by the next load. Raises BrokenCheckpoint
    when a file is missing or does not hold what config.json says, MissingExtra or UsageError when a package is missing
    that the format needs, DoesNotFit when memory or disk run out. Remote code never runs.
    """
    bound_kernels()
    meter = LoadMeter()
    if load_format == "dummy":
        model, tokenizer = _dummy(folder, plan, on_progress)
        _pack(model, plan, folder)
        notes: tuple[str, ...] = (NOISE_NOTE,)
    else:
        check_files(folder)
        tokenizer = load_tokenizer(folder)
        model, notes = _cached_or_built(folder, plan, on_progress, packed)
    notes += rounded_activations(model, plan.cpu_activations)
    notes += use_card_products(model, DTYPES[plan.dtype])
    notes += use_fp8_products(model, DTYPES[plan.dtype])
    notes += use_grouped_experts(model, DTYPES[plan.dtype])
    pad_linear_layers(model)
    stream = stream_offloaded(model)
    notes += () if stream is None else (stream.sentence,)
    gc.collect()
    trim_heap()
    notes += left_in_16_bit(model, plan)
    return LoadedModel(
        model, tokenizer, weights_bytes(model), model.config._attn_implementation, meter.read(model), notes
    )


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of `folder`. Raises BrokenCheckpoint where there is none, or none that can stream text."""
    # transformers makes an empty tokenizer where the files are missing, and says nothing.
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise BrokenCheckpoint(f"{folder} has no tokenizer (none of {', '.join(_VOCABULARIES)}); download it again")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise explain(error, folder, "the tokenizer") from error
    if not tokenizer.is_fast:
        raise BrokenCheckpoint(f"{folder} has no tokenizer.json, which is needed to stream text")
    return tokenizer


def _cached_or_built(
    folder: Path, plan: Plan, on_progress: Callable[[float], None], packed: PackedFolder | None
) -> tuple[Any, tuple[str, ...]]:
    """The model in the form that it computes in, and notes for the user."""

    def made() -> Any:
        with quantizing_in_flight(plan):
            model = _stored(folder, on_progress, _arguments(folder, plan))
        _pack(model, plan, folder)
        return model

    start = packed_start(folder, plan, packed)
    if start is None:
        return made(), ()
    return start.load(made, lambda layers, tied_head: _load_around_packed(folder, plan, on_progress, layers, tied_head))


def _load_around_packed(
    folder: Path, plan: Plan, on_progress: Callable[[float], None], layers: Layers, tied_head: str | None
) -> Any:
    """The model around layers that are packed already."""
    with placing({name: layer for name, layer in layers.items() if name != tied_head}) as quantization:
        arguments = {"dtype": DTYPES[plan.dtype], "attn_implementation": "sdpa", **placement_arguments(folder, plan)}
        with quantizing_in_flight(plan):
            model = _stored(folder, on_progress, {**arguments, "config": configured(folder, quantization)})
    if tied_head is not None:
        files = MappedFiles.of(folder)
        if not files.holds(model.get_input_embeddings().weight):
            raise Misplaced("the embedding can't be read in place")
        set_tied_head(model, layers[tied_head], files)
    use_own_threads()
    _pack(model, plan, folder)
    return model


def _pack(model: Any, plan: Plan, folder: Path) -> None:
    """Bring, in place, every layer of `model` into the form that it computes in."""
    model.eval()
    files, dtype = MappedFiles.of(folder), DTYPES[plan.dtype]
    num_stored = compile_stored(model, dtype, files)
    compile_quantized(model, quantizer(plan), partial(by_bitsandbytes, plan=plan))
    repack_quantized(model, dtype)
    map_embedding(model, folder)
    if pack_linears(model, files) or num_stored or plan.quant.in_flight or packed_layers(model):
        # What is left in the files would keep them mapped.
        files.detach(model)


def _stored(folder: Path, on_progress: Callable[[float], None], arguments: dict[str, Any]) -> Any:
    """The model with the weights that are in `folder`, as `from_pretrained` loads it by `arguments`."""
    try:
        with releasing(folder, on_progress):
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, with names and shapes that the library's own error lacks
                **arguments,
            )
    except Misplaced:
        raise
    except Exception as error:
        raise explain(error, folder, "the weights") from error
    _check_complete(folder, report)
    return model


def _dummy(folder: Path, plan: Plan, on_progress: Callable[[float], None]) -> tuple[Any, Any]:
    """A model of random weights, and the folder's tokenizer or one that stands in for it."""
    empty = empty_model(folder, plan)
    arguments = _arguments(folder, plan)
    place = arguments["device_map"]
    # On one card the values are drawn there, many times faster than a CPU draws and sends them.
    weights = random_weights(empty, torch.device(place if isinstance(place, str) and place != "auto" else "cpu"))
    try:
        with releasing(folder, on_progress), quantizing_in_flight(plan):
            model = type(empty).from_pretrained(None, config=empty.config, state_dict=weights, **arguments)
    except Exception as error:
        raise explain(error, folder, "random weights") from error
    if any((folder / name).is_file() for name in _VOCABULARIES):
        return model, load_tokenizer(folder)
    tokenizer = stand_in_tokenizer(model.config.get_text_config().vocab_size)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def _arguments(folder: Path, plan: Plan) -> dict[str, Any]:
    """What the plan says, as `from_pretrained` takes it."""
    dtype = DTYPES[plan.dtype]
    quiet_bitsandbytes()
    if plan.quant.scheme == "bnb-int8":
        return_large_blocks()
    in_flight = in_flight_config(plan, dtype)
    # No key where nothing is asked for: a None would overwrite what the checkpoint's own config.json says.
    quantization = {"quantization_config": in_flight} if in_flight else stored_arguments(folder, plan)
    return {"dtype": dtype, "attn_implementation": "sdpa", **quantization, **placement_arguments(folder, plan)}


def _check_complete(folder: Path, report: dict[str, Any]) -> None:
    """transformers fills what is missing or misshapen with random numbers; a server that talks nonsense is worse."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise BrokenCheckpoint(
            f"{folder} lacks {len(missing)} of the tensors that config.json calls for, first {missing[0]}: "
            "is a shard missing, or is config.json of another model?"
        )
    scales = sorted(key for key in report["unexpected_keys"] if _SCALE.search(key))
    if scales:
        raise BrokenCheckpoint(
            f"{folder} has quantized weights ({len(scales)} tensors such as {scales[0]}) that its config.json does not "
            "describe, so they can't be read. Is quantization_config missing from config.json?"
        )
    misshapen = sorted(report["mismatched_keys"])
    if misshapen:
        name, found, wanted = misshapen[0]
        hint = "Is config.json of another model?"
        if "_attn." in name and "head_dim" not in read_config(folder):
            hint = "config.json has no head_dim, and the library's default is not this model's: add head_dim to it"
        raise BrokenCheckpoint(
            f"{folder} has {len(misshapen)} tensors of another shape than config.json calls for, first {name}: "
            f"{list(found)}, expected {list(wanted)}. {hint}"
        )
