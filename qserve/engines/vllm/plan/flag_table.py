"""What each setting of vLLM's server does to the plan: configs/vllm_flags.toml, a row for every flag of its parser."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from qserve.core.facts import load
from qserve.core.nested import text_keys

__all__ = ["FlagTable", "flag_table", "is_negative", "setting_of"]

# Option strings that are not spelled as the setting that they write. Source: vllm 0.32's parser.
_ALIASES = {
    "--device-memory-utilization": "gpu_memory_utilization",
    "-ac": "attention_config",
    "-asc": "api_server_count",
    "-cc": "compilation_config",
    "-dc": "diffusion_config",
    "-dcp": "decode_context_parallel_size",
    "-dp": "data_parallel_size",
    "-ep": "enable_expert_parallel",
    "-h": "help",
    "-n": "nnodes",
    "-pcp": "prefill_context_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-q": "quantization",
    "-r": "node_rank",
    "-sc": "speculative_config",
    "-tp": "tensor_parallel_size",
}


@dataclass(frozen=True)
class FlagTable:
    """The rows by kind; settings are named as vLLM's parser names them (`max_model_len`)."""

    planned: Mapping[str, str]
    owned: Mapping[str, str]
    refused: Mapping[str, str]
    limited: Mapping[str, Mapping[str, Any]]
    harmless: frozenset[str]

    @property
    def known(self) -> frozenset[str]:
        """Every setting that has a row."""
        return frozenset((*self.planned, *self.owned, *self.refused, *self.limited)) | self.harmless

    def why_refused(self, dest: str, values: Sequence[str], key: str = "") -> str | None:
        """Why a value of the setting may not reach the engine beside a plan, as half a sentence; None where it may.

        Says nothing of what is planned: that is held against the plan itself.
        """
        if dest in self.owned:
            return self.owned[dest]
        if dest in self.refused:
            return f"{self.refused[dest]}; leave it out"
        if dest in self.limited:
            return self._beyond(self.limited[dest], values)
        if dest == "hf_overrides":
            return _why_not_overridden(key, values)
        if dest not in self.known:
            return "what it does to memory is not known; leave it out"
        return None

    @staticmethod
    def _beyond(limit: Mapping[str, Any], values: Sequence[str]) -> str | None:
        allowed = limit.get("values", ())
        if any(value in allowed for value in values) or ("at_most" in limit and _is_at_most(values, limit["at_most"])):
            return None
        takes = ", ".join(allowed) or f"{limit['at_most']} or less"
        return f"{limit['otherwise']}; {takes} leaves the plan as it is"


@cache
def flag_table() -> FlagTable:
    """The table of configs/vllm_flags.toml."""
    rows = load("vllm_flags")
    harmless = frozenset(name for names in rows["harmless"].values() for name in names)
    return FlagTable(rows["planned"], rows["owned"], rows["refused"], rows["limited"], harmless)


def setting_of(word: str) -> tuple[str, str]:
    """Setting and dotted key of an option as somebody wrote it: `--no-enforce-eager`, `-tp`, `--hf-overrides.a.b`."""
    name, _, key = word.partition("=")[0].partition(".")
    if re.match(r"-O\d?$", name):
        return "optimization_level", ""
    dashed = name.replace("_", "-")
    if dashed in _ALIASES:
        return _ALIASES[dashed], key
    setting = dashed.lstrip("-").replace("-", "_")
    known = flag_table().known
    positive = setting.removeprefix("no_")
    return next((name for name in (positive, _other_way(positive)) if name in known), setting), key


def is_negative(name: str, dest: str) -> bool:
    """Whether a switch turns its setting off: `--no-enable-lora`, and from 0.33 on `--disable-lora` as well."""
    return name.startswith("--no-") or name[2:].replace("-", "_") == _other_way(dest)


def _other_way(setting: str) -> str:
    """`disable_lora` of `enable_lora` and back; "" of any other. Source: vllm 0.33 utils/argparse_utils.py."""
    verb, _, rest = setting.partition("_")
    other = {"enable": "disable", "disable": "enable"}.get(verb)
    return f"{other}_{rest}" if other else ""


def _is_at_most(values: Sequence[str], limit: float) -> bool:
    try:
        return all(float(value) <= limit for value in values)
    except ValueError:
        return False


_STRETCHING = {"rope_parameters", "rope_scaling", "max_position_embeddings", "original_max_position_embeddings"}


def _why_not_overridden(key: str, values: Sequence[str]) -> str | None:
    """Only what stretches the context is planned; any other key could change the model that was counted."""
    others = sorted(_overridden_keys(key, values) - _STRETCHING)
    if not others:
        return None
    return (
        f"{', '.join(others)} would change the model that was counted; write it into the checkpoint's config.json "
        f"(the plan supports {', '.join(sorted(_STRETCHING))})"
    )


def _overridden_keys(key: str, values: Sequence[str]) -> set[str]:
    """Keys of config.json, or of its language model; none of what is no JSON: the engine's parser names that."""
    if key:
        return {next(part for part in (*key.split("."), "") if part not in ("thinker_config", "text_config"))}
    try:
        tree = json.loads(values[0]) if values else {}
    except ValueError:
        return set()
    if not isinstance(tree, dict):
        return set()
    return set(text_keys(tree))
