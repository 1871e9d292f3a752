"""The planner against published figures: every row of measurements.csv is planned as its source describes it.

A row is compared, or it is listed with the reason why not; nothing is dropped without a word. The column `left_out`
says why a row that is planned and shown is no part of the average: it contradicts physics or its neighbours, or its
source does not state what the figure depends on. What the planner makes of a row is never the reason.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Device, Hardware, known_gpus
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.defaults import default_max_num_batched_tokens, default_max_num_seqs
from qserve.engines.vllm.plan.versions import TESTED_RELEASE, VllmVersion
from qserve.errors import QserveError
from qserve.hub.bundled import bundled_config, known_ids, packed_config
from qserve.planner import Plan, PlanRequest, make_plan, plan_request
from qserve.units import GIB, MIB

__all__ = [
    "EIGHTH",
    "FIFTH",
    "FOURTH",
    "HOLDOUT",
    "MEASUREMENTS",
    "SECOND",
    "SEVENTH",
    "SIXTH",
    "THIRD",
    "Comparison",
    "Skipped",
    "compare_all",
    "read_rows",
]

FOLDER = Path(__file__).parent
MEASUREMENTS = "measurements.csv"
HOLDOUT = "holdout.csv"
"""Logs that nobody had seen when the constants were set: never to be fitted to. What they showed to be wrong was
changed; the rows marked `second` were collected after that, those marked `third` after what the second showed had been
changed. docs/results/planner.md has the errors of the first look at each, and what was changed after it."""
SECOND = "second"
THIRD = "third"
FOURTH = "fourth"
FIFTH = "fifth"
SIXTH = "sixth"
SEVENTH = "seventh"
EIGHTH = "eighth"
_RAM_BYTES = 512 * GIB
# What the published runs had: each format computed as it was stored.
_INSTALLED = frozenset({"kernels", "gptqmodel", "optimum", "bitsandbytes", "compressed-tensors"})

# Logs that state no release, but print weights with four decimals or count blocks, as only old ones did.
INFERRED_RELEASES = {
    **{f"m{number:04d}": "0.7.0" for number in range(583, 589)},
    **{f"m{number:04d}": "0.8.0" for number in range(603, 607)},
}
_QUANTITIES = {
    "model weights": "weights",
    "torch peak activation increase": "activations",
    "non-torch forward increase": "non-torch",
    "available KV cache memory": "KV bytes",
    "GPU KV cache size": "KV tokens",
    "GPU KV blocks (16 tokens)": "KV tokens",
    "maximum concurrency at max_model_len": "concurrency",
    "CUDA graph pool (vLLM estimate)": "CUDA graphs",
    "peak GPU memory": "peak",
}


@dataclass(frozen=True)
class Row:
    """One published figure."""

    id: str
    kind: str
    model: str
    config: dict[str, Any]
    quantity: str
    value: float
    unit: str
    part: str = ""
    left_out: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Planned against measured, in the same unit; `group` is engine and release."""

    row: Row
    term: str
    group: str
    planned: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error: (planned − measured) / measured."""
        return (self.planned - self.measured) / abs(self.measured)


@dataclass(frozen=True)
class Skipped:
    """A row that can't be planned, and why."""

    row: Row
    reason: str


def read_rows(file: str = MEASUREMENTS) -> list[Row]:
    """Every row of a file of published figures."""
    with (FOLDER / file).open(newline="") as stream:
        return [
            Row(
                line["id"],
                line["kind"],
                line["model"],
                json.loads(line["config"]),
                line["quantity"],
                float(line["value"]) if re.fullmatch(r"-?[\d.]+", line["value"]) else float("nan"),
                line["unit"],
                line.get("set", ""),
                line["left_out"] or None,
            )
            for line in csv.DictReader(stream)
        ]


def compare_all(file: str = MEASUREMENTS, part: str | None = None) -> Iterator[Comparison | Skipped]:
    """Each inference row of vLLM and transformers, compared or skipped; of one `part` of the file if it is given."""
    rows = [row for row in read_rows(file) if part is None or row.part == part]
    for row in rows:
        if row.kind not in ("inference-vllm", "inference-transformers"):
            continue
        reason = _why_not(row)
        if reason:
            yield Skipped(row, reason)
            continue
        try:
            yield from _compare(row, rows)
        except QserveError as error:
            yield Skipped(row, str(error).split(";")[0])


def _why_not(row: Row) -> str | None:
    if row.value < 0:
        return "start-up failed: a negative cache is no size"
    if row.quantity not in _QUANTITIES:
        return f"{row.quantity!r} is not a term of the plan"
    if row.kind == "inference-transformers" and row.config.get("generation") == "Qwen1":
        return "first-generation Qwen ran code of its own; unit and way of measuring are not stated"
    if row.config.get("uncertain") and row.left_out is None:
        return f"uncertain by its source: {row.config.get('uncertain_why') or row.config['uncertain']}"
    if _checkpoint_for(row) is None:
        return f"dimensions or packing of {row.model} ({row.config.get('quant')}) are not known"
    return None


def _checkpoint_for(row: Row) -> Checkpoint | None:
    """What the row served. Pages of a hybrid don't depend on how its weights are packed."""
    packed = checkpoint_of(row.model, str(row.config.get("quant")))
    plain = checkpoint_of(_full_id(row.model) or row.model, "None")
    if packed is None and plain is not None and plain.spec.is_hybrid:
        return plain if _QUANTITIES.get(row.quantity) in ("KV tokens", "concurrency") else None
    return packed


def _compare(row: Row, rows: list[Row]) -> Iterator[Comparison | Skipped]:
    checkpoint = _checkpoint_for(row)
    assert checkpoint is not None
    term = _QUANTITIES[row.quantity]
    request = request_of(row)
    is_paged = checkpoint.spec.is_hybrid and term in ("KV tokens", "concurrency")
    given = _cache_bytes_given(row, rows) if is_paged else None
    if is_paged and given is None and checkpoint_of(row.model, str(row.config.get("quant"))) is None:
        yield Skipped(row, "neither KV bytes nor the packing of the weights are stated")
        return
    devices = devices_of(row.config)
    if given is not None:
        request, term = replace(request, kv_cache_memory_bytes=given), f"{term}, KV bytes given"
        devices = devices or _anything(row.config)
    if term == "weights":
        devices = devices or _anything(row.config)
    if not devices:
        yield Skipped(row, f"the card's memory is not stated ({row.config.get('gpu', 'no card named')})")
        return
    is_share_needed = row.kind == "inference-vllm" and term in ("KV bytes", "KV tokens", "concurrency")
    if is_share_needed and "gpu_memory_utilization" not in row.config:
        yield Skipped(row, "gpu_memory_utilization is not stated")
        return
    machine = Hardware(devices, _RAM_BYTES, _RAM_BYTES, 16, packages=_INSTALLED | _beside(row))
    plan = make_plan(checkpoint, machine, request, with_suggestions=False)
    planned, measured = _figures(row, term, plan)
    release = ".".join(plan.engine_version.split(".")[:2])
    yield Comparison(row, term, f"{plan.engine} {release}", planned, measured)


def _beside(row: Row) -> frozenset[str]:
    """FlashInfer, where the log says that it samples: releases up to 0.10 do so wherever it is installed."""
    return frozenset({"flashinfer-python"} if str(row.config.get("note", "")).endswith("; FlashInfer") else ())


def _figures(row: Row, term: str, plan: Plan) -> tuple[float, float]:
    device = plan.devices[0]
    if term.startswith("KV tokens"):
        return float(plan.kv_cache_tokens), row.value * (16 if "blocks" in row.quantity else 1)
    if term.startswith("concurrency"):
        return plan.max_concurrency, row.value
    if term == "peak":
        total = sum(d.weights_bytes + d.kv_cache_bytes + d.activations_bytes for d in plan.devices)
        return total / GIB, row.value / (1 if row.unit == "GB" else 1024)
    # From 0.27 on the log's "peak activation" has the estimated graphs in it. Source: vllm gpu_worker.py.
    checkpoint, version = _checkpoint_for(row), VllmVersion.parse(plan.engine_version)
    assert checkpoint is not None
    has_graphs = row.kind == "inference-vllm" and version.release >= (0, 27)
    has_graphs = has_graphs and version.subtracts_cuda_graphs(checkpoint.spec)
    num_bytes = {
        "weights": device.weights_bytes,
        "activations": device.activations_bytes + (device.cuda_graphs_bytes if has_graphs else 0),
        "KV bytes": min(d.kv_cache_bytes for d in plan.devices),
        "CUDA graphs": device.cuda_graphs_bytes,
        "non-torch": next((t.num_bytes for t in device.terms if t.name == "non-torch"), 0),
    }[term]
    return num_bytes / GIB, row.value


def _cache_bytes_given(row: Row, rows: list[Row]) -> int | None:
    """The KV bytes that the same log states; hybrids turn them into tokens by their pages."""
    for other in rows:
        if other.model == row.model and other.config == row.config:
            if other.quantity == "KV cache bytes":
                return int(other.value)
            if other.quantity == "available KV cache memory":
                return int(other.value * GIB)
    return None


def request_of(row: Row) -> PlanRequest:
    """What the row says was fixed."""
    config = row.config
    release = INFERRED_RELEASES.get(row.id) or _release(config)
    version = VllmVersion.parse(release or TESTED_RELEASE)
    devices = devices_of(config) or _anything(config)
    shared = {
        "max_model_len": config.get("max_model_len"),
        # The log's engine ran with its own default where the row names none; the planner would lower it to fit.
        "max_num_seqs": config.get("max_num_seqs") or default_max_num_seqs(devices[0], version),
        "max_num_batched_tokens": config.get("max_num_batched_tokens")
        or default_max_num_batched_tokens(devices[0], version, config.get("max_model_len") or _max_length(row)),
    }
    dtype = {"torch.bfloat16": "bfloat16", "fp16": "float16", "half": "float16", "bf16": "bfloat16"}.get(
        str(config.get("dtype")), config.get("dtype")
    )
    if row.kind == "inference-transformers":
        prompt = int(config["input_len"])
        return plan_request(
            engine="transformers",
            engine_version=config["transformers"],
            prompt_len=prompt,
            max_model_len=prompt + int(config["gen_tokens"]),
            max_num_seqs=config.get("batch", 1),
            max_num_batched_tokens=2048,
            device_map="balanced",  # what accelerate's own "auto" does, with which the published runs were loaded
        )
    speculative = re.search(r"mtp n=(\d)", str(config.get("spec", "")))
    adapters = re.match(r"(\d+) adapters, rank (\d+)", str(config.get("lora", "")))
    return plan_request(
        **shared,
        block_size=config.get("block_size"),
        max_cudagraph_capture_size=config.get("max_cudagraph_capture_size"),
        engine="vllm",
        engine_version=release,
        dtype=None if dtype == "auto" else dtype,
        gpu_memory_utilization=config.get("gpu_memory_utilization"),
        quant="auto" if _is_stored_packed(row) else "bf16",
        kv_cache_dtype=str(config.get("kv_cache_dtype", "auto")).split(" ")[0].replace("bf16", "bfloat16"),
        tensor_parallel_size=config.get("tp", 1),
        enforce_eager=bool(config.get("enforce_eager")),
        enable_prefix_caching=_prefix_caching(config),
        num_speculative_tokens=int(speculative[1]) if speculative else 0,
        language_model_only=bool(config.get("language_model_only")),
        warm_compile_cache=config.get("compile_cache") == "warm",
        enable_lora=adapters is not None,
        max_loras=int(adapters[1]) if adapters else None,
        max_lora_rank=int(adapters[2]) if adapters else None,
    )


def _is_stored_packed(row: Row) -> bool:
    checkpoint = _checkpoint_for(row)
    return checkpoint is not None and checkpoint.spec.quantization is not None


def _max_length(row: Row) -> int:
    checkpoint = _checkpoint_for(row)
    return checkpoint.spec.max_position_embeddings if checkpoint else 2048


def _prefix_caching(config: dict[str, Any]) -> bool | None:
    if "enable_prefix_caching" in config:
        return bool(config["enable_prefix_caching"])
    return True if "align" in str(config.get("mamba_cache_mode", config.get("derived", ""))) else None


def _release(config: dict[str, Any]) -> str | None:
    """The row's vLLM release; None where it states none and the planner's default is as good as any."""
    text = str(config.get("vllm", ""))
    if config.get("engine") == "V0":
        return "0.7.0"
    if text.startswith("nightly"):
        return "0.22.0"  # the one nightly says "v0.22-era"
    found = re.search(r"\d+\.\d+(\.\d+)?", text)
    return found[0] if found else None


@cache
def checkpoint_of(model: str, quant: str) -> Checkpoint | None:
    """The bundled dimensions of a row's model, packed as configs/checkpoints.toml or the row says."""
    packed = packed_config(_packed_id(model, quant))
    if packed is not None:
        return Checkpoint(model, None, packed, ModelSpec.from_config(packed, model))
    name = _full_id(model)
    if name is None:
        return None
    packing = _packing(model, quant)
    if packing is None:
        return None
    config = {**(bundled_config(name) or {}), **packing}
    return Checkpoint(model, None, config, ModelSpec.from_config(config, model))


def _packed_id(model: str, quant: str) -> str:
    """Of a row that names the model and says by whom it was packed: "NVFP4 (nvidia)"."""
    return f"nvidia/{model.split('/')[-1]}-NVFP4" if quant == "NVFP4 (nvidia)" else model


_SUFFIXES = r"(-AWQ-BF16-INT8|-AWQ|-GPTQ-Int4|-GPTQ-Int8|-FP8|-FP8-dynamic|-quantized\.w8a8|-bnb-4bit)$"


def _full_id(model: str) -> str | None:
    wanted = re.sub(_SUFFIXES, "", model).split("/")[-1]
    for known in known_ids():
        if known.split("/")[-1] == wanted:
            return known
    return None


def _packing(model: str, quant: str) -> dict[str, Any] | None:
    text = f"{model} {quant}".lower()
    method: dict[str, Any]
    if any(word in text for word in ("nvfp4", "autoround", "mixed", "cyankiwi", "syv-ai", "agentworld")):
        return None  # mixed precision: only the files' bytes would tell
    if "w8a8" in text:
        weights = {"num_bits": 8, "type": "int"}
        groups = {"group_0": {"weights": weights, "input_activations": {"num_bits": 8}}}
        method = {"quant_method": "compressed-tensors", "config_groups": groups}
    elif "fp8-dynamic" in text:
        groups = {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}
        method = {"quant_method": "compressed-tensors", "config_groups": groups}
    elif "awq" in text:
        method = {"quant_method": "awq", "bits": 4, "group_size": 128}
    elif "gptq" in text:
        method = {"quant_method": "gptq", "bits": 8 if "int8" in text else 4, "group_size": 128}
    elif "bnb-4bit" in text:
        method = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}
    elif "fp8" in text:
        method = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    else:
        return {}
    # The files of Qwen2-72B and Qwen2.5-72B in four bits and eight are padded to whole groups for any number of ranks.
    padded = {"intermediate_size": 29696} if re.search(r"qwen2(\.5)?-72b", text) and "bits" in method else {}
    return {"quantization_config": method, **padded}


def devices_of(config: dict[str, Any]) -> tuple[Device, ...]:
    """The cards of a row; empty where their memory is not stated and the name tells too little."""
    gpu = str(config.get("gpu", ""))
    count = max(int(config.get("tp", 1)), int(config.get("num_gpus", 1)), int((re.match(r"(\d)x", gpu) or [0, 1])[1]))
    card = _card(gpu)
    total = config.get("gpu_total_GiB") or (
        float(config["gpu_total_MiB"]) / 1024 if "gpu_total_MiB" in config else None
    )
    stated = re.search(r"\(([\d.]+) GiB", gpu)
    if total is None and stated:
        total = float(stated[1])
    if card is None and total is None:
        return ()
    device = card or Device(gpu or "card", "cuda", 0, sm_count=80, formats=("fp16", "bf16"), compute_capability=(8, 0))
    if "compute_capability" in config:
        major, minor = config["compute_capability"]
        device = replace(device, compute_capability=(int(major), int(minor)))
    if total is not None:
        device = replace(device, total_bytes=int(float(total) * GIB))
    elif "WSL2" in str(config.get("note")):  # nvidia-smi's total, 430 MiB above torch's on Linux (configs/gpus.toml)
        device = replace(device, total_bytes=device.total_bytes + 430 * MIB)
    sized = re.search(r"-(\d+)GB", gpu)  # the same name with another memory: RTX2060-12GB
    if total is None and sized and abs(device.total_bytes / GIB / float(sized[1]) - 1) > 0.2:
        device = replace(device, total_bytes=int(sized[1]) * GIB)
    return (device,) * count


def _card(gpu: str) -> Device | None:
    text = re.sub(r"^\d+x", "", gpu).lower().replace(" ", "-")
    if re.search(r"laptop|4090-d", text):  # another card by a name that begins like a known one's
        return None
    for pattern, key in (
        ("h100", "h100-sxm"),
        ("h200", "h200"),
        ("h20", "h20"),
        ("a100-80", "a100-80gb"),
        ("a100-40", "a100-40gb"),
        ("l40s", "l40s"),
        ("l40", "l40"),
        ("l4", "l4"),
        ("tesla-t4", "t4"),
        ("v100-32", "v100-32gb"),
        ("gb10", "gb10"),
        ("a10g", "a10g"),
        ("rtx-a6000", "rtx-a6000"),
        ("rtx-pro-6000", "rtx-pro-6000"),
    ):
        if text.startswith(pattern):
            return known_gpus()[key]
    geforce = re.match(r"rtx-?(\d{4}(?:-ti)?(?:-super)?)", text)
    return known_gpus().get(f"rtx-{geforce[1]}") if geforce else None


def _anything(config: dict[str, Any]) -> tuple[Device, ...]:
    """Large cards for what does not depend on the card."""
    count = max(int(config.get("tp", 1)), 1)
    return (replace(known_gpus()["h200"], total_bytes=512 * 1024 * MIB),) * count
