"""Quantizing while loading: bitsandbytes' LLM.int8, NF4, FP4, and on cards fp8; what it touches and what it costs.

On a card what it holds is multiplied by products of ours (`model/cuda/`). On a CPU compiled ones compute, and the same
numbers are made without it (`model/cpu/quantized.py`); it takes the layers whose shape these do not.
Heads, embeddings, norms, routers and the small projections of linear attention stay in the plan's dtype, and
core/packing.py counts them so. transformers 5 joins a layer's experts in one parameter that bitsandbytes does not see;
on a CPU each is quantized as it would be by itself (`quantizer`), elsewhere those bytes are told
(`left_in_16_bit`). fp8 needs no package, and experts are made fp8 as well (`model/fp8/`).
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from qserve.core.schemes import SCHEMES
from qserve.errors import MissingExtra, UsageError
from qserve.model.cpu.build import library
from qserve.model.cpu.experts import CompiledExperts, Quantize
from qserve.model.cpu.quantized import four_bit_weight, int8_weight
from qserve.model.cpu.quantized_loading import in_flight, quantizing
from qserve.model.fp8.loading import fp8_in_flight
from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = [
    "BNB_SCHEMES",
    "by_bitsandbytes",
    "in_flight_config",
    "left_in_16_bit",
    "on_own_products",
    "quantizer",
    "quantizing_in_flight",
    "quiet_bitsandbytes",
    "repack_quantized",
    "state_tensors",
]

BNB_SCHEMES = tuple(name for name, scheme in SCHEMES.items() if scheme.by_bitsandbytes)

# Names as transformers matches them (quantizers_utils.should_convert_module): at the end, or as a regex from the start.
_KEPT_MODULES = (
    "lm_head",
    "score",
    "mlp.gate",
    "shared_expert_gate",
    "in_proj_a",
    "in_proj_b",
    "in_proj_ba",
    r".*\bvisual\b",
    r".*\bmtp\b",
)
# bitsandbytes' fused CPU kernel takes bf16, whole blocks of 64 along the input and of 32 along the output.
_FUSED_IN, _FUSED_OUT = 64, 32
_BNB_LAYERS = ("Linear4bit", "Linear8bitLt")
_FP8 = "fp8_per_channel"


def in_flight_config(plan: Plan, dtype: torch.dtype) -> Any | None:
    """transformers' quantization_config for what `plan` quantizes while loading; None where it does not.

    Raises MissingExtra without bitsandbytes, UsageError for a scheme that transformers can't make while loading.
    """
    scheme = plan.quant.scheme
    if not plan.quant.in_flight or SCHEMES[scheme].bits >= 16:
        return None
    if scheme == _FP8 and not plan.on_cpu:
        return fp8_in_flight(_KEPT_MODULES)
    if scheme not in BNB_SCHEMES:
        raise UsageError(
            f"--quant {scheme} needs a checkpoint that is stored as {scheme}; while loading, the transformers engine "
            f"can only quantize to {', '.join(BNB_SCHEMES)}, and on a card to {_FP8}"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", f"--quant {scheme}")
    return in_flight(_KEPT_MODULES) if on_own_products(plan) else _bitsandbytes_config(plan, dtype)


def _bitsandbytes_config(plan: Plan, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig  # checks for bitsandbytes itself

    scheme = plan.quant.scheme
    return BitsAndBytesConfig(
        llm_int8_skip_modules=list(_KEPT_MODULES),
        llm_int8_enable_fp32_cpu_offload=_mixes_cards_and_host(plan.placement.device_map),
        **_asked(scheme),
        **({"bnb_4bit_compute_dtype": dtype} if SCHEMES[scheme].bits == 4 else {}),
    )


def _asked(scheme: str) -> dict[str, Any]:
    """What a checkpoint of the scheme says in bitsandbytes' own words."""
    return {key: value for key, value in (SCHEMES[scheme].config or {}).items() if key != "quant_method"}


def on_own_products(plan: Plan) -> bool:
    """Whether what `plan` quantizes while loading is computed by our own products of a CPU, and made by them."""
    is_made = plan.quant.in_flight and plan.quant.scheme in BNB_SCHEMES and plan.dtype == "bfloat16"
    return is_made and plan.placement.device_map == "cpu" and library() is not None


def quantizer(plan: Plan) -> Quantize | None:
    """What makes of a weight in bf16 what the plan makes of linear layers; None where it makes nothing."""
    scheme = plan.quant.scheme
    if not plan.quant.in_flight or scheme not in BNB_SCHEMES:
        return None
    asked = _asked(scheme)
    if asked.get("load_in_8bit"):
        return int8_weight
    kind, is_nested = asked["bnb_4bit_quant_type"], asked["bnb_4bit_use_double_quant"]
    return partial(four_bit_weight, kind=kind, is_nested=is_nested)


@contextmanager
def quantizing_in_flight(plan: Plan) -> Iterator[None]:
    """Within it, models that load become what `plan` says of their layers and experts, where a CPU has our products."""
    with quantizing(quantizer(plan) if plan.on_cpu and plan.dtype == "bfloat16" else None, experts=True):
        yield


def by_bitsandbytes(linear: nn.Linear, plan: Plan) -> nn.Module:
    """A layer whose shape our products do not take, as the library's loading would have made it."""
    from bitsandbytes.nn import Int8Params, Linear4bit, Linear8bitLt, Params4bit

    config, shape = _bitsandbytes_config(plan, linear.weight.dtype), (linear.in_features, linear.out_features)
    has_bias, weight = linear.bias is not None, linear.weight.data
    made: Any
    if config.load_in_8bit:
        made = Linear8bitLt(*shape, has_bias, has_fp16_weights=False, threshold=config.llm_int8_threshold)
        made.weight = Int8Params(weight, requires_grad=False, has_fp16_weights=False).to("cpu")
    else:
        kind, is_nested = config.bnb_4bit_quant_type, config.bnb_4bit_use_double_quant
        made = Linear4bit(*shape, has_bias, weight.dtype, compress_statistics=is_nested, quant_type=kind)
        made.weight = Params4bit(
            weight, requires_grad=False, compress_statistics=is_nested, quant_type=kind, module=made
        ).to("cpu")
    if has_bias:
        made.bias = linear.bias
    return made  # type: ignore[no-any-return]


def _mixes_cards_and_host(device_map: Any) -> bool:
    """Whether modules lie on cards and beside them: then bitsandbytes leaves those beside them in 16 bit."""
    places = set(device_map.values()) if isinstance(device_map, dict) else set()
    return bool(places & {"cpu", "disk"}) and bool(places - {"cpu", "disk"})


@torch.no_grad()
def repack_quantized(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring every quantized layer into the form that it computes in, one after another.

    bitsandbytes repacks a 4-bit weight for the CPU's kernels in its first call: done here, the first request does not
    pay for it, and what is measured after loading is what is held while serving.
    """
    layers: list[Any] = [module for module in model.modules() if type(module).__name__ in _BNB_LAYERS]
    for layer in layers:
        if layer.weight.device.type == "meta":  # lies on disk; accelerate brings it in for each call
            continue
        if hasattr(layer, "support_avx512bf16_for_cpu") and not _fits_fused_kernel(layer):
            layer.support_avx512bf16_for_cpu = False
        # In the dtype of the activations: a bias takes on that of its first input.
        layer(torch.zeros(1, layer.in_features, dtype=dtype, device=layer.weight.device))


def _fits_fused_kernel(module: Any) -> bool:
    """The kernel asserts whole blocks in the middle of a request, and computes in bf16 whatever dtype was asked for."""
    whole = module.in_features % _FUSED_IN == 0 and module.out_features % _FUSED_OUT == 0
    return whole and module.compute_dtype in (None, torch.bfloat16)


def state_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    """What bitsandbytes keeps beside the parameters of `module`: scales, their scales, code books."""
    weight = getattr(module, "weight", None)
    states = [getattr(weight, "quant_state", None), getattr(module, "state", None)]
    for state in states:
        for holder in (state, getattr(state, "state2", None)):
            for name in ("absmax", "code", "SCB", "CB", "offset"):
                tensor = getattr(holder, name, None)
                if isinstance(tensor, torch.Tensor):
                    yield tensor


def left_in_16_bit(model: nn.Module, plan: Plan) -> tuple[str, ...]:
    """Sentences about matrices that `plan` quantizes by name, and that the library left as they were."""
    if plan.quant.scheme not in BNB_SCHEMES:
        return ()
    experts = [p for name, p in model.named_parameters() if ".experts." in name and p.is_floating_point()]
    made = [one for module in model.modules() if isinstance(module, CompiledExperts) for one in module.matrices]
    compiled = [one for one in made if one.format == "bfloat16"]
    if not experts and not compiled:
        return ()
    num_bytes = sum(math.prod(p.shape) * p.element_size() for p in experts) + sum(one.code_bytes for one in compiled)
    dtype = str(experts[0].dtype).removeprefix("torch.") if experts else compiled[0].format
    return (
        f"{format_bytes(num_bytes)} of experts stay in {dtype}: transformers 5 joins a layer's "
        "experts in one parameter, which bitsandbytes does not quantize (bitsandbytes#1849)",
    )


# What the library says on every matmul, and where a CPU kernel of a hub's could be had.
_NOISE = ("inputs will be cast from", "gemm_4bit_forward from kernels-community")
_NOISY_LOGGERS = ("bitsandbytes.autograd._functions", "bitsandbytes.backends.cpu.ops")


class _NoNoise(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not any(noise in record.getMessage() for noise in _NOISE)


def quiet_bitsandbytes() -> None:
    """From now on the library does not say once per matmul that LLM.int8 casts its inputs. All else is heard."""
    for name in _NOISY_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(item, _NoNoise) for item in logger.filters):
            logger.addFilter(_NoNoise())
