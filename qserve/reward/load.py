"""Loads a reward model: the body as planned, the head in fp32; missing tensors are errors."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig
from transformers.utils import logging as transformers_logging

from qserve.core.schemes import SCHEMES
from qserve.engines.transformers.kernels.refusals import Refusal
from qserve.engines.transformers.worker.attention.kernels import Heads
from qserve.engines.transformers.worker.attention.texts import refused_texts, text_trials
from qserve.errors import BrokenCheckpoint
from qserve.hub.served_folder import clean_folder
from qserve.model import reference_kernels
from qserve.model.checkpoint_errors import explain
from qserve.model.cpu.activations import rounded_activations
from qserve.model.cpu.matrix import use_own_threads
from qserve.model.cpu.padded_rows import bound_kernels, pad_linear_layers
from qserve.model.cuda.before_load import try_before_loading
from qserve.model.cuda.trial import use_card_products
from qserve.model.fp8.trial import use_fp8_products
from qserve.model.load import DTYPES, load_tokenizer, weights_bytes
from qserve.model.load_cost import LoadCost, LoadMeter
from qserve.model.mapped import MappedFiles, releasing, return_large_blocks
from qserve.model.packed_cache.folder import PackedFolder
from qserve.model.packed_cache.layers import Layers, packed_layers
from qserve.model.packed_cache.placing import Misplaced, placing
from qserve.model.packed_cache.start import packed_start
from qserve.model.packed_linear import compile_quantized, pack_linears
from qserve.model.placement import check_cards, in_names_of
from qserve.model.quantize import (
    by_bitsandbytes,
    in_flight_config,
    left_in_16_bit,
    quantizer,
    quantizing_in_flight,
    quiet_bitsandbytes,
    repack_quantized,
)
from qserve.model.stored.arguments import own_quantization
from qserve.model.stored.linear import compile_stored
from qserve.model.trials.verdicts import Trial
from qserve.planner.plan import Plan
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.head import ScoreHead
from qserve.reward.scoring import attention
from qserve.reward.scoring.row_pass import RowPass
from qserve.reward.weights import body_tensors

__all__ = ["LoadedReward", "is_plain_folder", "load_reward_model"]


@dataclass(frozen=True)
class LoadedReward:
    """A reward model that is ready to score.

    `packs`: rows of texts laid end to end can go through the body; without it they are padded on the right (hybrids,
    whose linear attention carries a state along the row, sliding windows, and bodies whose tokens see what follows).
    `row_pass`: a faster way through the body for packed rows, where there is one. `by_one_call`: whether texts of a row
    that share nothing are one call of attention; `refused` has the kernel for it where the card refused that.
    """

    checkpoint: RewardCheckpoint
    body: Any
    head: ScoreHead
    tokenizer: Any
    dtype: str
    quant: str
    weights_bytes: int
    packs: bool
    row_pass: RowPass | None = None
    by_one_call: bool = False
    refused: tuple[Refusal, ...] = ()
    cost: LoadCost = field(default_factory=LoadCost)
    notes: tuple[str, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where token ids go: the device of the embedding."""
        device: torch.device = self.body.get_input_embeddings().weight.device
        # An embedding that accelerate keeps on disk is brought to the device that its hook names.
        hook = getattr(self.body.get_input_embeddings(), "_hf_hook", None)
        return torch.device(hook.execution_device) if device.type == "meta" and hook is not None else device


def load_reward_model(
    checkpoint: RewardCheckpoint,
    plan: Plan,
    on_progress: Callable[[float], None] = lambda share: None,
    packed: PackedFolder | None = None,
) -> LoadedReward:
    """Body and head of `checkpoint`, in the plan's dtype, quantization and placement.

    `on_progress` hears the share of the tensors that is done. A quantized body that a whole folder holds is kept in
    `packed` as a CPU computes with it, and found there by the next load. Raises BrokenCheckpoint when a tensor is
    missing, of another shape or not a number, DoesNotFit when memory runs out, MissingExtra when peft or bitsandbytes
    are needed. Remote code never runs.
    """
    bound_kernels()
    meter = LoadMeter()
    tokenizer = load_tokenizer(checkpoint.tokenizer)
    quiet_bitsandbytes()
    try_before_loading(plan, DTYPES[plan.dtype], lambda: _skeleton(checkpoint), partial(_text_trials, checkpoint, plan))
    body, notes = _cached_or_built(checkpoint, plan, on_progress, packed)
    notes += rounded_activations(body, plan.cpu_activations)
    notes += use_card_products(body, DTYPES[plan.dtype])
    notes += use_fp8_products(body, DTYPES[plan.dtype])
    pad_linear_layers(body)
    head = _head(checkpoint, body)
    packs = _packs(body)
    if packs:
        attention.register()
        body.set_attn_implementation(attention.NAME)
    else:
        reference_kernels.expect_on(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    gc.collect()
    row_pass, slower = (RowPass.of(body), RowPass.why_not(body)) if packs else (None, None)
    by_one_call, refused = _one_call(body) if packs else (False, ())
    return LoadedReward(
        checkpoint=checkpoint,
        body=body,
        head=head,
        tokenizer=tokenizer,
        dtype=plan.dtype,
        quant=_quant(plan),
        weights_bytes=weights_bytes(body) + weights_bytes(head),
        packs=packs,
        row_pass=row_pass,
        by_one_call=by_one_call,
        refused=refused,
        cost=meter.read(body),
        notes=(*checkpoint.notes, *notes, *left_in_16_bit(body, plan), *([slower] if slower else [])),
    )


def _quant(plan: Plan) -> str:
    scheme = plan.quant.scheme
    return scheme if SCHEMES[scheme].bits < 16 else "none"


def _cached_or_built(
    checkpoint: RewardCheckpoint, plan: Plan, on_progress: Callable[[float], None], packed: PackedFolder | None
) -> tuple[Any, tuple[str, ...]]:
    """The body in the form that it computes in, and notes for the user."""

    def made() -> Any:
        return _packed(_body(checkpoint, plan, on_progress), checkpoint, plan)

    def around(layers: Layers, _: str | None) -> Any:
        with placing(layers) as quantization:
            body = _body(checkpoint, plan, on_progress, quantization)
        use_own_threads()
        return _packed(body, checkpoint, plan)

    start = packed_start(checkpoint.path, plan, packed, "body") if is_plain_folder(checkpoint) else None
    return (made(), ()) if start is None else start.load(made, around)


def _packed(body: Any, checkpoint: RewardCheckpoint, plan: Plan) -> Any:
    """Each layer of `body` in the form that it computes in, in place."""
    body.eval()
    for parameter in body.parameters():
        parameter.requires_grad_(False)
    files, dtype = MappedFiles.of(_folder(checkpoint)), DTYPES[plan.dtype]
    num_stored = compile_stored(body, dtype, files)
    compile_quantized(body, quantizer(plan), partial(by_bitsandbytes, plan=plan))
    repack_quantized(body, dtype)
    if pack_linears(body, files) or num_stored or plan.quant.in_flight or packed_layers(body):
        files.detach(body)
    return body


def _body(
    checkpoint: RewardCheckpoint, plan: Plan, on_progress: Callable[[float], None], packed: dict[str, Any] | None = None
) -> Any:
    """The decoder without its lm_head. transformers would fill what is missing with random numbers: refused here.

    `packed`: the `quantization_config` by which it is loaded around layers that are packed already.
    """
    where = checkpoint.path
    config = _config(checkpoint)
    own = own_quantization(where, plan) if packed is None and is_plain_folder(checkpoint) else packed
    if own is not None:
        config.quantization_config = own
    cls = MODEL_MAPPING[type(config)]
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # that head and lm_head are left over is as it should be
    try:
        in_flight = None if packed is not None else in_flight_config(plan, DTYPES[plan.dtype])
        arguments = _arguments(checkpoint, plan, cls, config, in_flight)
        with releasing(_folder(checkpoint), on_progress), quantizing_in_flight(plan):
            body, report = cls.from_pretrained(
                **arguments,
                config=config,
                attn_implementation="sdpa",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                local_files_only=True,
            )
    except Misplaced:
        raise
    except Exception as error:
        raise explain(error, where, "the weights") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    _check_complete(where, report)
    return body


def _arguments(
    checkpoint: RewardCheckpoint, plan: Plan, cls: Any, config: Any, quantization: Any | None
) -> dict[str, Any]:
    """Where the weights come from, in which precision, and where they go, as `from_pretrained` takes it."""
    dtype = DTYPES[plan.dtype]
    if plan.quant.scheme == "bnb-int8":
        return_large_blocks()
    whole = is_plain_folder(checkpoint)
    return {
        "pretrained_model_name_or_path": clean_folder(checkpoint.path) if whole else None,
        **({} if whole else {"state_dict": body_tensors(checkpoint, dtype)}),
        **({"quantization_config": quantization} if quantization is not None else {}),
        "dtype": dtype,
        **_placement(plan, cls, config),
    }


def is_plain_folder(checkpoint: RewardCheckpoint) -> bool:
    """Whether transformers finds the body in the folder by itself, quantized as it may be stored."""
    names = ("model.safetensors", "model.safetensors.index.json")
    has_files = any((checkpoint.path / name).is_file() for name in names)
    return has_files and checkpoint.adapter is None and checkpoint.body_prefix in ("", "model.")


def _placement(plan: Plan, cls: Any, config: Any) -> dict[str, Any]:
    """The plan names the modules of a causal model; the body has them without `model.`, and no lm_head."""
    placed = plan.placement.device_map
    check_cards(placed)
    if not isinstance(placed, dict):
        return {"device_map": placed}
    own = {name.removeprefix("model."): place for name, place in placed.items() if name not in ("lm_head", "score")}
    with torch.device("meta"):
        skeleton = cls(config)
    device_map = in_names_of(skeleton, own)
    if "disk" not in device_map.values():
        return {"device_map": device_map}
    return {"device_map": device_map, "offload_folder": tempfile.mkdtemp(prefix="qserve-reward-offload-")}


def _folder(checkpoint: RewardCheckpoint) -> Path:
    return checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent


def _config(checkpoint: RewardCheckpoint) -> Any:
    values = dict(checkpoint.config)
    return AutoConfig.for_model(values.pop("model_type"), **values)


def _text_trials(checkpoint: RewardCheckpoint, plan: Plan, device: torch.device) -> list[list[Trial]]:
    """Before there is a body."""
    heads = Heads.of(SimpleNamespace(config=_config(checkpoint), dtype=DTYPES[plan.dtype]))
    return [[one] for one in text_trials(device, heads)]


def _one_call(body: Any) -> tuple[bool, tuple[Refusal, ...]]:
    """Whether a row's texts are one call of attention, and the refusal of a kernel that could have been it."""
    heads, places = Heads.of(body), dict.fromkeys(one.device for one in body.parameters())
    cards = [device for device in places if text_trials(device, heads)]
    found = next((one for one in (refused_texts(device, heads) for device in cards) if one is not None), None)
    return bool(cards) and found is None, () if found is None else (found,)


def _skeleton(checkpoint: RewardCheckpoint) -> nn.Module:
    """The body without weights; it takes no memory."""
    config = _config(checkpoint)
    with torch.device("meta"):
        body: nn.Module = MODEL_MAPPING[type(config)](config)
    return body


def _check_complete(where: Path, report: dict[str, Any]) -> None:
    missing, misshapen = sorted(report["missing_keys"]), sorted(report["mismatched_keys"])
    if missing:
        raise BrokenCheckpoint(
            f"{where} lacks {len(missing)} of the body's tensors, first {missing[0]}; scores of a body with random "
            "parts mean nothing. Is a shard missing, or the wrong --base named?"
        )
    if misshapen:
        name, found, wanted = misshapen[0]
        raise BrokenCheckpoint(
            f"{where} has {len(misshapen)} tensors of another shape than the config calls for, first {name}: "
            f"{list(found)}, expected {list(wanted)}. Is the config (or --base) of another model?"
        )


def _head(checkpoint: RewardCheckpoint, body: Any) -> ScoreHead:
    """On the device on which the body's last norm computes."""
    head = ScoreHead(checkpoint.head).requires_grad_(False).eval()
    if not all(bool(torch.isfinite(parameter).all()) for parameter in head.parameters()):
        raise BrokenCheckpoint(
            f"the head {checkpoint.head.prefix!r} of {checkpoint.id} has values that are not numbers (NaN or "
            "infinity): its training diverged; take an earlier checkpoint"
        )
    last = list(body.modules())[-1]
    weight = next(iter(body.norm.parameters()), None) if hasattr(body, "norm") else next(iter(last.parameters()), None)
    return head if weight is None or weight.device.type == "meta" else head.to(weight.device)


def _packs(body: Any) -> bool:
    if getattr(body.config, "is_causal", True) is False:  # gte-Qwen2: every token sees all of its text
        return False
    layers = getattr(body.config, "layer_types", None)
    if layers is None:
        return getattr(body.config, "sliding_window", None) is None
    return all(kind == "full_attention" for kind in layers)
