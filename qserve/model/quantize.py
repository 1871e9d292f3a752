"""bitsandbytes while loading: LLM.int8, NF4, FP4; what it touches, what it leaves alone, and what that costs.

On a card what it holds is multiplied by products of ours (`model/card/`), on a CPU by compiled ones (`model/cpu/`).
Heads, embeddings, norms, routers and the small projections of linear attention stay in the plan's dtype, and
core/packing.py counts them so. transformers 5 joins a layer's experts in one parameter that bitsandbytes does not see;
on a CPU each is quantized as it would be by itself (`expert_quantizer`), elsewhere those bytes are told
(`left_in_16_bit`).
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from qserve.core.quantization import SCHEMES
from qserve.errors import MissingExtra, UsageError
from qserve.model.cpu.experts import CompiledExperts, Quantize
from qserve.model.cpu.linear import four_bit_matrix
from qserve.model.cpu.matrix import Matrix, int8_matrix
from qserve.planner.plan import Plan
from qserve.units import format_bytes

__all__ = [
    "BNB_SCHEMES",
    "expert_quantizer",
    "in_flight_config",
    "left_in_16_bit",
    "quiet_bitsandbytes",
    "repack_quantized",
    "state_tensors",
]

BNB_SCHEMES = ("bnb-int8", "bnb-nf4", "bnb-nf4-single", "bnb-fp4")

# Names as transformers matches them (quantizers_utils.should_convert_module): at the end, or as a regex from the start.
_KEPT_MODULES = (
    "lm_head", "score", "mlp.gate", "shared_expert_gate", "in_proj_a", "in_proj_b", "in_proj_ba",
    r".*\bvisual\b", r".*\bmtp\b",
)  # fmt: skip
# bitsandbytes' fused CPU kernel takes bf16, whole blocks of 64 along the input and of 32 along the output.
_FUSED_IN, _FUSED_OUT = 64, 32
_BNB_LAYERS = ("Linear4bit", "Linear8bitLt")
_INT8_RANGE = 127


def in_flight_config(plan: Plan, dtype: torch.dtype) -> Any | None:
    """transformers' quantization_config for what `plan` quantizes while loading; None where it does not.

    Raises MissingExtra without bitsandbytes, UsageError for a scheme that transformers can't make while loading.
    """
    scheme = plan.quant.scheme
    if not plan.quant.in_flight or SCHEMES[scheme].bits >= 16:
        return None
    if scheme not in BNB_SCHEMES:
        raise UsageError(
            f"--quant {scheme} needs a checkpoint that is stored so; while loading, the transformers engine makes "
            f"{', '.join(BNB_SCHEMES)}"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise MissingExtra("bitsandbytes", f"--quant {scheme}")
    from transformers import BitsAndBytesConfig  # checks for bitsandbytes itself

    mixed = _mixes_cards_and_host(plan.placement.device_map)
    common = {"llm_int8_skip_modules": list(_KEPT_MODULES), "llm_int8_enable_fp32_cpu_offload": mixed}
    if scheme == "bnb-int8":
        return BitsAndBytesConfig(load_in_8bit=True, **common)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="fp4" if scheme == "bnb-fp4" else "nf4",
        bnb_4bit_use_double_quant=scheme != "bnb-nf4-single",
        bnb_4bit_compute_dtype=dtype,
        **common,
    )


def expert_quantizer(plan: Plan) -> Quantize | None:
    """What makes of one expert's weight what the plan makes of linear layers; None where it makes nothing."""
    scheme = plan.quant.scheme
    if not plan.quant.in_flight or scheme not in BNB_SCHEMES:
        return None
    return _int8_expert if scheme == "bnb-int8" else partial(_four_bit_expert, scheme=scheme)


def _int8_expert(weight: torch.Tensor) -> Matrix | None:
    """LLM.int8: each row by its largest."""
    scales = weight.float().abs().amax(dim=1).clamp(min=1e-30) / _INT8_RANGE
    return int8_matrix((weight.float() / scales[:, None]).round().to(torch.int8), scales)


def _four_bit_expert(weight: torch.Tensor, scheme: str) -> Matrix | None:
    from bitsandbytes.functional import quantize_4bit

    packed, state = quantize_4bit(
        weight.contiguous(),
        blocksize=_FUSED_IN,
        quant_type="fp4" if scheme == "bnb-fp4" else "nf4",
        compress_statistics=scheme != "bnb-nf4-single",
    )
    return four_bit_matrix(packed, state)


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
        "experts in one parameter, which bitsandbytes leaves alone (bitsandbytes#1849)",
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
