"""A LoRA adapter in peft's format: a folder with adapter_config.json and adapter_model.safetensors. Read, not loaded.

What peft's own result would differ in is refused by name, so that an adapter which is taken answers as peft has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor
from qserve.errors import BrokenCheckpoint, ModelNotFound, UsageError
from qserve.hub.bounded import read_header, read_json
from qserve.hub.weight_names import ADAPTER

__all__ = ["UNLIKE_LORA", "PeftAdapter", "adapter_files", "changing_start", "check_base", "read_adapter"]

_CONFIG, _TENSORS, _PICKLED = ADAPTER
_PREFIX = "base_model.model."
UNLIKE_LORA: Mapping[str, str] = {
    "alora_invocation_tokens": "activated LoRA, which holds behind its invocation tokens alone",
    "arrow_config": "a router of adapters (Arrow)",
    "kasa_config": "KaSA, which changes the base's weights when the training begins",
    "layer_replication": "replicated layers",
    "lora_bias": "biases of its factors",
    "megatron_config": "Megatron's layers",
    "monteclora_config": "factors that are distributions (MonteCLoRA)",
    "target_parameters": "adapted fused parameters (of experts)",
    "trainable_token_indices": "trained single rows of the embedding",
    "use_bdlora": "factors in blocks (BD-LoRA)",
    "use_qalora": "factors of pooled inputs (QALoRA)",
    "velora_config": "projected activations (VeLoRA)",
}
"""Keys of peft 0.21's LoraConfig under which its result is not the base and a product of two factors, with what they
ask for."""
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")


def changing_start(config: Mapping[str, Any]) -> str | None:
    """The `init_lora_weights` of an adapter that changed its base when its training began: of what was trained, only
    the difference to that changed base is stored. None of any other.
    """
    start = str(config.get("init_lora_weights")).lower()
    return start if start.startswith(_CHANGE_THE_BASE) else None


_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_NAME = re.compile(r"[\w.]+")
_PAIR = re.compile(r"^(?P<module>.+)\.lora_(?P<side>[AB])(?:\.default)?\.weight$")


@dataclass(frozen=True)
class PeftAdapter:
    """What a folder holds.

    Attributes:
        folder: where it is.
        config: of adapter_config.json.
        ranks: of each adapted module, by its name in the base model.
        shapes: inputs and outputs of each.
        heads: whole tensors beside the pairs, as `modules_to_save` leaves them.

    """

    folder: Path
    config: Mapping[str, Any]
    ranks: Mapping[str, int]
    shapes: Mapping[str, tuple[int, int]]
    heads: Mapping[str, Tensor]

    @property
    def rank(self) -> int:
        """The largest."""
        return max(self.ranks.values())

    @cached_property
    def targets(self) -> tuple[str, ...]:
        """Kinds of modules that it changes: `q_proj`, …"""
        return tuple(sorted({name.rpartition(".")[2] for name in self.ranks}))

    @property
    def base_model(self) -> str:
        """What it says that it was trained on; "" where it does not."""
        return str(self.config.get("base_model_name_or_path") or "")

    def scaling(self, module: str) -> float:
        """What the product of a module's pair is multiplied by, as peft finds it."""
        alpha = _of_pattern(self.config.get("alpha_pattern"), module, self.config.get("lora_alpha", 8))
        rank = self.ranks[module]
        return float(alpha) / (math.sqrt(rank) if self.config.get("use_rslora") else rank)


def adapter_files(folder: Path) -> tuple[Path, ...]:
    """The files of an adapter that are read."""
    return folder / _CONFIG, folder / _TENSORS


def read_adapter(folder: Path, heads: tuple[str, ...] = ()) -> PeftAdapter:
    """The adapter in `folder`. Raises ModelNotFound where there is none, UsageError for one that can't be served.

    `heads`: what `modules_to_save` may name.
    """
    config = _config(folder)
    _check_kind(folder, config, heads)
    tensors = {tensor.name: tensor for tensor in read_header(folder / _TENSORS)}
    pairs: dict[str, dict[str, Tensor]] = {}
    others: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = _PAIR.match(name.removeprefix(_PREFIX))
        if found is None:
            others[name] = tensor
        else:
            pairs.setdefault(found["module"], {})[found["side"]] = tensor
    _check_others(folder, others, heads)
    shapes = {module: _shape(folder, module, pair) for module, pair in pairs.items()}
    if not shapes:
        raise BrokenCheckpoint(f"{folder / _TENSORS} has no pair of lora_A and lora_B: nothing was trained there")
    ranks = {module: pair["A"].shape[0] for module, pair in pairs.items()}
    for module, rank in ranks.items():
        told = _of_pattern(config.get("rank_pattern"), module, config.get("r"))
        if told != rank:
            raise BrokenCheckpoint(
                f"{folder}: {module} has the rank {rank}, and {_CONFIG} says {told!r}; save the adapter again"
            )
    return PeftAdapter(folder, config, ranks, shapes, others)


def _config(folder: Path) -> Mapping[str, Any]:
    if not folder.is_dir():
        raise ModelNotFound(f"{folder} is no folder on this machine; name the one that has {_CONFIG}")
    for file, also in ((folder / _CONFIG, ""), (folder / _TENSORS, _pickled(folder))):
        if not file.is_file():
            there = ", ".join(sorted(one.name for one in folder.iterdir())[:6]) or "nothing"
            raise ModelNotFound(f"{folder} has no {file.name}{also}, so it is no LoRA adapter; it has {there}")
    return read_json(folder / _CONFIG)


def _pickled(folder: Path) -> str:
    return f" ({_PICKLED} is not read: save it as safetensors)" if (folder / _PICKLED).is_file() else ""


def _check_kind(folder: Path, config: Mapping[str, Any], heads: tuple[str, ...]) -> None:
    kind, start = config.get("peft_type"), changing_start(config)
    if kind != "LORA":
        raise UsageError(f"{folder} is an adapter of the kind {kind!r}; LORA is served")
    wrong = [words for key, words in {"use_dora": "DoRA", **UNLIKE_LORA}.items() if config.get(key)]
    if config.get("bias", "none") != "none":
        wrong.append(f"trained biases (bias={config['bias']!r})")
    if start is not None:
        wrong.append(
            f"init_lora_weights={start!r}, which changes the base model (convert it with peft's "
            "path_initial_model_for_weight_conversion)"
        )
    if saved := sorted(set(config.get("modules_to_save") or ()) - set(heads)):
        wrong.append(f"whole modules beside the pairs (modules_to_save={', '.join(saved)})")
    if config.get("fan_in_fan_out"):
        wrong.append("transposed weights (fan_in_fan_out)")
    if wrong:
        raise UsageError(
            f"{folder} has {', '.join(wrong)}, which is not served; merge it into its base, or train plain LoRA"
        )


def _check_others(folder: Path, others: Mapping[str, Tensor], heads: tuple[str, ...]) -> None:
    unknown = [name for name in others if not any(f".{head}." in f".{name}" for head in heads)]
    if unknown:
        raise UsageError(
            f"{folder} has tensors beside the pairs of lora_A and lora_B, for example {unknown[0]}; "
            "train linear layers alone"
        )


def _shape(folder: Path, module: str, pair: Mapping[str, Tensor]) -> tuple[int, int]:
    """Inputs and outputs."""
    if pair.keys() != {"A", "B"} or any(len(one.shape) != 2 for one in pair.values()):
        raise BrokenCheckpoint(f"{folder}: {module} needs matrices lora_A and lora_B; save the adapter again")
    (rank, inputs), (outputs, width) = pair["A"].shape, pair["B"].shape
    if rank != width or not rank:
        raise BrokenCheckpoint(f"{folder}: lora_A of {module} has the rank {rank}, lora_B {width}; save it again")
    return inputs, outputs


def _of_pattern(pattern: Any, module: str, usual: Any) -> Any:
    """As peft's get_pattern_key: a key is the end of a name, at a dot; the first that fits.

    A key may be any pattern there, which a stranger could make slow; those that peft and trainers write are names.
    """
    for key, value in (pattern or {}).items():
        name = key.removeprefix("^").removesuffix("$").replace("\\.", ".")
        if not _NAME.fullmatch(name):
            raise UsageError(
                f"{_CONFIG} has the pattern {key[:100]!r}; write names of modules in rank_pattern and "
                "alpha_pattern, as peft does"
            )
        if module == name or (module.endswith(f".{name}") and not key.startswith("^")):
            return value
    return usual


def check_base(adapter: PeftAdapter, spec: ModelSpec) -> None:
    """Raises UsageError where a pair does not fit the layers of `spec`: it was trained on another model."""
    known = dict(_linears(spec))
    for module, shape in adapter.shapes.items():
        found = _LAYER.search(module)
        index, name = (int(found[1]), found[2]) if found else (0, module)
        wanted = known.get(name)
        if index >= spec.num_hidden_layers:
            why = f"it has a pair for layer {index}, and {spec.id} has {spec.num_hidden_layers} layers"
        elif wanted is not None and shape != wanted:
            why = (
                f"its {module} takes {shape[0]} and gives {shape[1]}, and that of {spec.id} takes {wanted[0]} and "
                f"gives {wanted[1]}"
            )
        else:
            continue
        of = f" (it names {adapter.base_model})" if adapter.base_model else ""
        raise UsageError(f"{adapter.folder} was trained on another base model{of}: {why}")


def _linears(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, int]]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
    yield "self_attn.q_proj", (hidden, 2 * query if spec.attn_output_gate else query)
    yield "self_attn.k_proj", (hidden, kv)
    yield "self_attn.v_proj", (hidden, kv)
    yield "self_attn.o_proj", (query, hidden)
    yield "mlp.gate_proj", (hidden, inner)
    yield "mlp.up_proj", (hidden, inner)
    yield "mlp.down_proj", (inner, hidden)
