"""The models of a training run, and how many of their parameters are trained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import Head, ModelSpec
from qserve.core.quantization.stored import CheckpointQuantization
from qserve.core.schemes import SCHEMES
from qserve.core.tensors import Tensor
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.planner.training.training_request import Base, TrainingRequest, Tuning

__all__ = ["TrainedModel", "bitsandbytes_base", "cast_of"]

Role = Literal["policy", "reward", "critic", "reference"]
_ATTENTION = re.compile(r"\.self_attn\.[qkvo]_proj\.weight$")
_QKV = re.compile(r"\.self_attn\.[qkv]_proj\.weight$")
_BASES = {"4bit": "bnb-nf4", "int8": "bnb-int8"}
"""What each word of --quant makes of the base that is not trained."""


def bitsandbytes_base(scheme: str) -> Base | None:
    """What --quant calls that stored scheme; None of a scheme that bitsandbytes does not hold."""
    known = SCHEMES[scheme]
    return None if not known.by_bitsandbytes else "int8" if known.bits == 8 else "4bit"


@dataclass(frozen=True)
class TrainedModel:
    """One model in the run: its role, what it is, and what of it is trained (`tuning` None: nothing).

    `base` is what adapters' frozen base is held in (None: as the precision has it).
    """

    role: Role
    spec: ModelSpec
    tuning: Tuning | None
    rank: int = 8
    lora_targets: str = "all-linear"
    train_embeddings: bool = False
    base: Base | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Its tensors by dimensions; MTP heads are dropped by every trainer."""
        return _tensors(self.spec)

    @property
    def parameters(self) -> int:
        return sum(tensor.num_elements for tensor in self.tensors)

    @property
    def quantization(self) -> CheckpointQuantization | None:
        """How the base is stored: by the checkpoint, or as `base` says: nf4 with double quantization, LLM.int8.

        transformers 5 joins a layer's experts in one parameter, which bitsandbytes leaves in 16 bit
        (bitsandbytes-foundation/bitsandbytes#1849).
        """
        made = SCHEMES[_BASES[self.base]].made if self.base in _BASES else None
        if self.spec.quantization is not None or made is None:
            return self.spec.quantization
        return replace(made, skipped=("experts",)) if self.spec.moe else made

    @property
    def has_16_bit_adapters(self) -> bool:
        """Over a base of bitsandbytes TRL casts all that is trained to bf16 (trl/trainer/sft_trainer.py, 1.16)."""
        is_bnb = self.quantization is not None and SCHEMES[self.quantization.scheme].by_bitsandbytes
        return is_bnb and self.tuning in ("lora", "qlora")

    @property
    def trainable(self) -> int:
        """Parameters that have a gradient and optimizer states."""
        return sum(tensor.num_elements for tensor in self.trained_tensors)

    @property
    def trained_tensors(self) -> tuple[Tensor, ...]:
        """Those tensors: the model's own, the adapters', or copies of embedding and lm_head beside the adapters."""
        return _trained_tensors(self)

    @property
    def adapter_input_dims(self) -> int:
        """Input features of all adapters of one layer together; PEFT keeps an fp32 copy of each input."""
        return _adapter_input_dims(self)

    def base_bytes(self, frozen_bytes: int) -> int:
        """Bytes of the weights that no adapter adds, at `frozen_bytes` a 16-bit parameter (2 or 4)."""
        return _loaded_bytes(self.spec, self.quantization, "float32" if frozen_bytes == 4 else "bfloat16")

    def layer_bytes(self, frozen_bytes: int) -> int:
        """The same of one layer, averaged."""
        dtype = "float32" if frozen_bytes == 4 else "bfloat16"
        return _loaded_bytes(self.spec, self.quantization, dtype, layers_only=True) // self.spec.num_hidden_layers


@cache
def _tensors(spec: ModelSpec) -> tuple[Tensor, ...]:
    """Of a quantized checkpoint the logical matrices, which adapters are made for, not the packed ones."""
    return tuple(tensor for tensor in tensors_of(replace(spec, quantization=None)) if tensor.role != "mtp")


@cache
def _loaded_bytes(
    spec: ModelSpec, quantization: CheckpointQuantization | None, dtype: str, *, layers_only: bool = False
) -> int:
    tensors = [tensor for tensor in _tensors(spec) if not layers_only or ".layers." in tensor.name]
    return rank_weights(spec, tensors, Loading(dtype, quantization))


def cast_of(spec: ModelSpec, request: TrainingRequest, reward: ModelSpec | None = None) -> tuple[TrainedModel, ...]:
    """The models that `request` keeps in memory, the trained ones first.

    A reference model is a copy of the policy; under LoRA it is the policy with its adapters off, and costs nothing.
    ppo's critic is a policy-sized body with one output, its reward model `reward` (None: of the policy's size).
    """
    policy = TrainedModel(
        "reward" if request.method == "reward" else "policy",
        _with_head(spec, request.num_labels, int(request.step_labels)) if request.method == "reward" else spec,
        request.tuning,
        request.rank,
        request.lora_targets,
        request.train_embeddings,
        request.base,
    )
    cast = [policy]
    if request.method == "ppo":
        cast.append(replace(policy, role="critic", spec=_with_head(spec)))
    compares = request.method == "dpo" or (request.method in ("ppo", "grpo") and request.beta > 0)
    if compares and request.tuning == "full":
        cast.append(TrainedModel("reference", spec, None))
    if request.method == "ppo" or (request.method == "grpo" and reward is not None):
        cast.append(TrainedModel("reward", reward or _with_head(spec), None))
    return tuple(cast)


def _with_head(spec: ModelSpec, num_labels: int | None = None, hidden_layers: int = 0) -> ModelSpec:
    """The same body with a scalar head in place of the language-model head, or a new one of so many labels."""
    if spec.head.kind == "score" and num_labels is None:
        return spec
    return replace(spec, head=Head("score", num_labels=num_labels or 1, hidden_layers=hidden_layers))


@cache
def _trained_tensors(model: TrainedModel) -> tuple[Tensor, ...]:
    if model.tuning is None:
        return ()
    if model.tuning == "full":
        return model.tensors
    if model.tuning == "head":
        return tuple(tensor for tensor in model.tensors if tensor.role == "head")
    # A reward head is trained whole beside the adapters, as modules_to_save=["score"] copies it.
    saved = [t for t in model.tensors if t.role == "head"]
    saved += [t for t in model.tensors if model.train_embeddings and t.role in ("embedding", "lm_head")]
    return (*_adapters(model), *saved)


@cache
def _adapter_input_dims(model: TrainedModel) -> int:
    if model.tuning not in ("lora", "qlora"):
        return 0
    return sum(tensor.shape[1] for tensor in _targets(model) if tensor.repeat == model.spec.num_hidden_layers)


def _targets(model: TrainedModel) -> Iterator[Tensor]:
    pattern = {"attention": _ATTENTION, "qkv": _QKV}.get(model.lora_targets)
    for tensor in model.tensors:
        is_matrix = tensor.role == "linear" and len(tensor.shape) == 2 and tensor.name.endswith(".weight")
        if is_matrix and (pattern is None or pattern.search(tensor.name)):
            yield tensor


def _adapters(model: TrainedModel) -> Iterator[Tensor]:
    """A and B of every target."""
    fused = [tensor for tensor in _targets(model) if model.spec.family.fuses_qkv and _QKV.search(tensor.name)]
    for tensor in _targets(model):
        if tensor in fused[1:]:
            continue
        rows = sum(part.shape[0] for part in fused) if tensor in fused else tensor.shape[0]
        yield _adapter(tensor, "lora_A", (model.rank, tensor.shape[1]))
        yield _adapter(tensor, "lora_B", (rows, model.rank))


def _adapter(target: Tensor, part: str, shape: tuple[int, int]) -> Tensor:
    name = target.name.replace(".weight", f".{part}.weight")
    return Tensor(name, "float32", shape, shape[0] * shape[1] * target.repeat * 4, target.repeat)
