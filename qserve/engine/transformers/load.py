"""Weights from disk into memory, as the plan says, with each thing that can be wrong said in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qserve.engine.transformers.packed_linear import PackedLinear, pack_linears
from qserve.errors import BrokenCheckpoint
from qserve.planner.plan import Plan

__all__ = ["LoadedModel", "load"]

_VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class LoadedModel:
    """`weights_bytes` are counted from the parameters that are in memory, each shared one once."""

    model: Any
    tokenizer: Any
    weights_bytes: int
    attention: str


def load(folder: Path, plan: Plan) -> LoadedModel:
    """The causal language model and tokenizer of `folder`, in the plan's dtype, where the plan puts it.

    Raises BrokenCheckpoint when a file is missing or does not hold what config.json says. Remote code never runs.
    """
    # transformers makes an empty tokenizer where the files are missing, and says nothing.
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise BrokenCheckpoint(f"{folder} holds no tokenizer (none of {', '.join(_VOCABULARIES)}); download it again")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise BrokenCheckpoint(f"the tokenizer in {folder} can't be loaded: {_first_line(error)}") from error
    if not tokenizer.is_fast:
        raise BrokenCheckpoint(f"{folder} holds no tokenizer.json, which is needed to stream text")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=_DTYPES[plan.dtype],
            device_map=plan.placement.device_map,
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with names and shapes that the library's own error lacks
        )
    except Exception as error:
        raise BrokenCheckpoint(f"the weights in {folder} can't be loaded: {_first_line(error)}") from error
    _check_complete(folder, report)
    model.eval()
    pack_linears(model)
    return LoadedModel(model, tokenizer, _weights_bytes(model), model.config._attn_implementation)


def _check_complete(folder: Path, report: dict[str, Any]) -> None:
    """transformers fills what is missing or misshapen with random numbers; a server that talks nonsense is worse."""
    missing = sorted(report["missing_keys"])
    if missing:
        raise BrokenCheckpoint(
            f"{folder} lacks {len(missing)} of the tensors that config.json calls for, first {missing[0]}: "
            "is a shard missing, or is config.json of another model?"
        )
    misshapen = sorted(report["mismatched_keys"])
    if misshapen:
        name, found, wanted = misshapen[0]
        raise BrokenCheckpoint(
            f"{folder} holds {len(misshapen)} tensors of another shape than config.json calls for, first {name}: "
            f"{list(found)}, wanted {list(wanted)}. Is config.json of another model?"
        )


def _weights_bytes(model: torch.nn.Module) -> int:
    tensors = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()] if t.device.type != "meta"}
    return sum(tensors.values()) + sum(m.weight_bytes for m in model.modules() if isinstance(m, PackedLinear))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
