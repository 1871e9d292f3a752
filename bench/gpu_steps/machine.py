"""The device under test, seen with torch alone: qserve's own detection needs packages that may be missing there."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.limits import has_bf16, synchronize
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, formats_of
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.worker.batching.make import supports_pages
from qserve.hub.bundled import bundled_config
from qserve.packages import missing_to_serve
from qserve.planner import Plan, make_plan, plan_request
from qserve.planner.speed.terms.card import card_of

__all__ = ["SHAPES", "TINY", "Machine", "config_folder", "config_of", "environment"]

# What torch takes of a card before the first tensor; the planner counts it as runtime.
_CONTEXT_BYTES = 512 * 1024**2
_OPTIONAL = ("bitsandbytes", "flash_attn", "kernels", "compressed_tensors", "gptqmodel", "psutil", "vllm")
SHAPES = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B", "Qwen/Qwen3-4B", "Qwen/Qwen3-8B", "Qwen/Qwen3-14B", "Qwen/Qwen3-32B")
# Runs every line of this script in seconds on a CPU; its figures mean nothing.
TINY: dict[str, Mapping[str, Any]] = {
    name: {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "intermediate_size": 128,
        "vocab_size": 1024,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        "dtype": "bfloat16",
    }
    for name, layers, tied in (("tiny-tied", 2, True), ("tiny-untied", 4, False))
}
TINY["tiny-experts"] = {
    **TINY["tiny-untied"],
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}


@dataclass(frozen=True)
class Machine:
    """`device` is what is measured: a card, or the CPU to try the script itself."""

    device: torch.device

    @property
    def is_card(self) -> bool:
        return self.device.type == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.is_card else platform.processor() or "cpu"

    @property
    def scheme_16_bit(self) -> str:
        """In which the shapes are measured."""
        return "bf16" if has_bf16(self.device) else "fp16"

    def hardware(self, num_cards: int = 1) -> Hardware:
        """As the planner takes it, with what is free right now. Cards beyond `num_cards` are not touched: asking one
        makes a context on it, which takes half a gigabyte of somebody's memory."""
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        available = min(ram, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") + _page_cache_bytes())
        cards = tuple(_card(index) for index in range(num_cards)) if self.is_card else ()
        return Hardware(cards, ram, available, os.cpu_count() or 1, disk_free_bytes=_disk_free_bytes())

    def plan(self, model: str, **fixed: Any) -> Plan:
        """The installed transformers engine's plan for a shape of `config_of`, on the first card alone."""
        config = config_of(model)
        checkpoint = Checkpoint(model, None, config, ModelSpec.from_config(config, model))
        release = importlib.metadata.version("transformers")
        return make_plan(
            checkpoint, self.hardware(), plan_request(engine="transformers", engine_version=release, **fixed)
        )

    def planned_limits(self) -> dict[str, float]:
        """What the planner takes this card to read and multiply; nothing of a CPU."""
        if not self.is_card:
            return {}
        card = card_of(_card(0))
        return {"read_bytes_per_s": card.bandwidth, "gemm_flop_per_s": card.peak("bf16")}

    def allocated_bytes(self) -> int:
        """Bytes in live tensors by torch's allocator; 0 on a CPU, where nobody counts them."""
        synchronize(self.device)
        return torch.cuda.memory_allocated(self.device) if self.is_card else 0

    def peak_bytes(self) -> int:
        """The most bytes in live tensors since `reset_peak`."""
        synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) if self.is_card else 0

    def reset_peak(self) -> None:
        if self.is_card:
            synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)

    def outside_bytes(self) -> int:
        """Of the card, what is taken and not torch's: CUDA's context and libraries, and other processes."""
        if not self.is_card:
            return 0
        synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free - torch.cuda.memory_reserved(self.device)

    def release(self) -> None:
        """Give back what dropped models held, so that the next one is counted from nothing."""
        gc.collect()
        if self.is_card:
            synchronize(self.device)
            torch.cuda.empty_cache()


def config_of(model: str) -> Mapping[str, Any]:
    """config.json of a bundled model, or of one of `TINY`."""
    config = TINY.get(model) or bundled_config(model)
    assert config is not None, f"{model} is not bundled"
    return config


def config_folder(model: str) -> Path:
    """A folder that holds nothing but config.json: enough for random weights."""
    folder = Path(tempfile.mkdtemp(prefix="qserve-gpu-"))
    (folder / "config.json").write_text(json.dumps(config_of(model)))
    return folder


def environment(machine: Machine) -> dict[str, Any]:
    """Versions, the card and its size, which batcher runs, which optional packages are here, and what `up` lacks."""
    names = ("torch", "transformers", "accelerate", "triton", "bitsandbytes", "vllm")
    about: dict[str, Any] = {
        "card": machine.name,
        "versions": {
            "python": platform.python_version(),
            **{name: found for name in names if (found := _version(name))},
        },
        "batcher": "PagedBatcher" if supports_pages() else "RowBatcher",
        "optional_packages": {name: importlib.util.find_spec(name) is not None for name in _OPTIONAL},
        "lacks_to_serve": list(missing_to_serve()),
    }
    if machine.is_card:
        properties = torch.cuda.get_device_properties(machine.device)
        about["device"] = {
            "name": properties.name,
            "total_bytes": torch.cuda.mem_get_info(machine.device)[1],
            "multi_processors": properties.multi_processor_count,
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "cards": torch.cuda.device_count(),
        }
    return about


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _card(index: int) -> Device:
    free, total = torch.cuda.mem_get_info(index)
    used = max(0, total - free - torch.cuda.memory_reserved(index) - _CONTEXT_BYTES)
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    return Device(
        properties.name,
        "cuda",
        total,
        used,
        properties.multi_processor_count,
        formats=formats_of(capability),
        compute_capability=capability,
    )


def _page_cache_bytes() -> int:
    """Pages that the kernel gives back when they are wanted (Linux)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if len(line.split()) > 1}
    return sizes.get("Cached", 0)


def _disk_free_bytes() -> int:
    stats = os.statvfs(tempfile.gettempdir())
    return stats.f_bavail * stats.f_frsize
