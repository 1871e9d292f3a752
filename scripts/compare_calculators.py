"""qserve beside other calculators on the same published figures, as a Markdown table (docs/memory.md).

hf-mem and accelerate run unchanged, on the configs and safetensors headers that the hub would serve; their requests
are answered from the bundled dimensions, so that no network is needed.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import logging
import math
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import hf_mem
import httpx2
from accelerate.commands import estimate

from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.units import GIB
from tests.golden.accuracy import Comparison, checkpoint_of, compare_all, read_rows
from tests.golden.accuracy import _cache_bytes_given as cache_bytes_given
from tests.golden.training import TrainingComparison, compare_training, model_parameters

TOOLS = ("qserve", "hf-mem", "accelerate estimate-memory", "weights × 1.2")
Estimate = dict[str, float | None]
"""Tool to GiB; None where the tool has no such figure."""


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    results = [item for item in compare_all() if isinstance(item, Comparison) and item.row.left_out is None]
    print(f"| figure | rows | {' | '.join(TOOLS)} |")
    print(f"|---|---:|{'---:|' * len(TOOLS)}")
    for title, wanted in KINDS.items():
        rows = [item for item in results if wanted(item)]
        _print_row(title, [_inference(item) for item in rows])
    trained = [item for item in compare_training() if isinstance(item, TrainingComparison) and not item.untrusted]
    for title, methods in (("training, all weights", ("full",)), ("training, LoRA and Q-LoRA", ("LoRA", "Q-LoRA"))):
        rows = [item for item in trained if item.what.split()[0].split("(")[0] in methods]
        _print_row(title, [(_gib(item.measured, item.unit), _training(item)) for item in rows])
    print("\nMean and worst error against the measured figure; – where a tool has no such figure.")


def _is_peak(item: Comparison, quantized: bool, since_446: bool) -> bool:
    recent = item.group != "transformers 4.38"
    return item.term == "peak" and (_bits(item) < 16) is quantized and recent is since_446


# transformers computed the logits of the whole prompt up to 4.44, and those of its last token since.
KINDS: dict[str, Callable[[Comparison], bool]] = {
    "vLLM, weights of one card": lambda item: item.term == "weights" and item.row.config.get("tp", 1) == 1,
    "transformers 4.38, peak, 16 bit": lambda item: _is_peak(item, False, False),
    "transformers 4.38, peak, 8 and 4 bit": lambda item: _is_peak(item, True, False),
    "transformers 4.46 and 4.51, peak, 16 bit": lambda item: _is_peak(item, False, True),
    "transformers 4.46 and 4.51, peak, 8 and 4 bit": lambda item: _is_peak(item, True, True),
    "vLLM, cache of one full sequence, hybrids": lambda item: item.term == "concurrency, KV bytes given",
}


def _print_row(title: str, rows: list[tuple[float, Estimate]]) -> None:
    cells = []
    for tool in TOOLS:
        errors = [estimate_[tool] / measured - 1 for measured, estimate_ in rows if estimate_[tool] is not None]
        cells.append(f"{_percent(errors)}" if errors else "–")
    print(f"| {title} | {len(rows)} | {' | '.join(cells)} |", flush=True)


def _percent(errors: list[float]) -> str:
    mean = sum(abs(error) for error in errors) / len(errors)
    return f"{mean:.1%}, worst {max(errors, key=abs):+.0%}"


def _bits(item: Comparison) -> int:
    quantization = _checkpoint(item).spec.quantization
    return quantization.bits if quantization else 16


def _checkpoint(item: Comparison) -> Checkpoint:
    quant = str(item.row.config.get("quant"))
    # Of some hybrids the packing is not known; their cache does not depend on it.
    checkpoint = checkpoint_of(item.row.model, quant) or checkpoint_of(item.row.model, "None")
    assert checkpoint is not None
    return checkpoint


def _inference(item: Comparison) -> tuple[float, Estimate]:
    """(measured, estimates) in GiB."""
    if item.term.startswith("concurrency"):
        return _sequence(item)
    checkpoint, config = _checkpoint(item), item.row.config
    weights, cache = _hf_mem(checkpoint, config.get("input_len", 0) + config.get("gen_tokens", 0))
    return item.measured, {
        "qserve": item.planned,
        "hf-mem": (weights + (cache if item.term == "peak" else 0)) / GIB,
        "accelerate estimate-memory": _accelerate(checkpoint, _bits(item)) / GIB,
        "weights × 1.2": 1.2 * checkpoint.parameters * _bits(item) / 8 / GIB,
    }


def _sequence(item: Comparison) -> tuple[float, Estimate]:
    """Bytes that one sequence of max_model_len takes: the cache divided by the concurrency that the log prints."""
    given = cache_bytes_given(item.row, read_rows())
    assert given is not None
    config = item.row.config
    is_one_byte = str(config.get("kv_cache_dtype")).startswith(("fp8", "int8"))
    _, cache = _hf_mem(_checkpoint(item), config["max_model_len"], "fp8" if is_one_byte else "bfloat16")
    return given / item.measured / GIB, {
        "qserve": given / item.planned / GIB,
        "hf-mem": cache / config.get("tp", 1) / GIB,  # it knows no ranks; its figure is divided for it
        "accelerate estimate-memory": None,
        "weights × 1.2": None,
    }


def _training(item: TrainingComparison) -> Estimate:
    parameters = model_parameters(item.model)
    bits = 4 if item.what.startswith("Q-LoRA") or "int4" in item.what else 8 if "int8" in item.what else 16
    usage = estimate.estimate_training_usage(4 * parameters, "float16") if "full" in item.what else None
    return {
        "qserve": _gib(item.planned, item.unit),
        "hf-mem": None,
        "accelerate estimate-memory": max(usage.values()) / GIB if usage else None,
        "weights × 1.2": 1.2 * parameters * bits / 8 / GIB,
    }


def _gib(value: float, unit: str) -> float:
    return value if unit == "GiB" else value * 1e9 / GIB


# hf-mem


def _hf_mem(checkpoint: Checkpoint, tokens: int, cache_dtype: str = "bfloat16") -> tuple[int, int]:
    """(weights, cache) in bytes, from hf-mem's own run, as --experimental --kv-cache-dtype would be."""
    config = json.dumps(dict(checkpoint.config))
    result = _run_hf_mem(checkpoint.id, config, _header(checkpoint), max(1, tokens), cache_dtype)
    return result.memory, result.kv_cache or 0


@functools.cache
def _run_hf_mem(model_id: str, config: str, header: bytes, tokens: int, cache_dtype: str) -> Any:
    answers = {
        f"/api/models/{model_id}/tree/main": json.dumps(
            [{"type": "file", "path": path} for path in ("config.json", "model.safetensors")]
        ).encode(),
        f"/{model_id}/resolve/main/config.json": config.encode(),
        f"/{model_id}/resolve/main/model.safetensors": header,
    }

    def answer(request: httpx2.Request) -> httpx2.Response:
        content = answers[request.url.path]
        if "range" in request.headers:
            first, last = request.headers["range"].removeprefix("bytes=").split("-")
            return httpx2.Response(206, content=content[int(first) : int(last) + 1])
        return httpx2.Response(200, content=content)

    client = httpx2.AsyncClient
    httpx2.AsyncClient = functools.partial(client, transport=httpx2.MockTransport(answer))
    try:
        return hf_mem.run(model_id, experimental=True, max_model_len=tokens, kv_cache_dtype=cache_dtype)
    finally:
        httpx2.AsyncClient = client


def _header(checkpoint: Checkpoint) -> bytes:
    """The first bytes of the safetensors file that the checkpoint would be."""
    entries: dict[str, Any] = {}
    offset = 0
    for name, dtype, shape in _tensors(checkpoint):
        size = math.prod(shape) * {"F32": 4, "I32": 4, "F8_E4M3": 1, "I8": 1, "U8": 1}.get(dtype, 2)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header)) + header


def _tensors(checkpoint: Checkpoint) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    spelled = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int32": "I32"}
    experts = checkpoint.spec.moe.num_experts if checkpoint.spec.moe else 1
    for tensor in tensors_of(checkpoint.spec):
        width = experts if ".experts.0." in tensor.name else 1
        for index in range(tensor.repeat):
            layer, expert = divmod(index, width)
            name = tensor.name.replace("layers.0.", f"layers.{layer}.").replace(".experts.0.", f".experts.{expert}.")
            yield name, spelled.get(tensor.dtype, tensor.dtype), tensor.shape


# accelerate


def _accelerate(checkpoint: Checkpoint, bits: int) -> float:
    """'Total Size' of accelerate estimate-memory, in the column that fits the checkpoint."""
    column = {16: "float16", 8: "int8", 4: "int4"}[bits]
    return _run_accelerate(json.dumps(dict(checkpoint.config), sort_keys=True))[column]


@functools.cache
def _run_accelerate(config: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        plain = {key: value for key, value in json.loads(config).items() if key != "quantization_config"}
        (Path(folder) / "config.json").write_text(json.dumps(plain))
        # The one question it would put to the hub: which library, and is there a config.
        estimate.verify_on_hub = lambda repo, token=None: SimpleNamespace(library_name="transformers", config=plain)
        names = ["float16", "int8", "int4"]
        arguments = argparse.Namespace(model_name=folder, library_name=None, trust_remote_code=False, dtypes=names)
        return {row[0]: row[2] for row in estimate.gather_data(arguments)}


main()
