"""Bytes of weights that a decoding step moves on a card, by how they are held and by rows: arithmetic over shapes.

Before: bitsandbytes' own products. LLM.int8 reads a byte a weight at any number of rows; 4 bits are read as they are
where its rule for a card of compute capability 9.0 and 132 multiprocessors says so (bitsandbytes.backends.cuda.ops,
`_gemm_4bit_use_custom_cuda`, read from the installed source: it can't be imported without a card), elsewhere the whole
weight is unpacked, written and read again. After: `engines/transformers/kernels/quantized_products.py`.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.engines.transformers.kernels.quantized_products import read_bytes
from qserve.hub.bundled import bundled_config

__all__ = ["bytes_table", "step_table"]

# With a scale in 8 bits for 64 numbers, and one in 32 for 256 of those.
_BITS = {"bf16": 16.0, "int8": 8.0, "nf4": 4 + 8 / 64 + 32 / (64 * 256)}
_HOPPER = 132, 9, 0
_KEYS = 1024


def bytes_table(model: str, rows: Sequence[int]) -> str:
    """Markdown: GB a step, before and after."""
    lines = ["| held as | rows | before, GB | after, GB |", "|---|---|---|---|"]
    for held, bits in _BITS.items():
        for num in rows:
            before = sum(_before(shape, held, bits, num) for shape in _shapes(model))
            after = sum(_after(shape, bits, num) for shape in _shapes(model))
            lines.append(f"| {held} | {num} | {before / 1e9:.1f} | {after / 1e9:.1f} |")
    return "\n".join(lines)


def step_table(models: Sequence[str], rows: Sequence[int], layer_launches: float, beside: float, waits: float) -> str:
    """Markdown: what a bf16 step of a dense model asks of a card, each row behind `_KEYS` tokens."""
    lines = [
        "| model | rows | kernels, not captured | waits | weights, GB | keys and values, GB |",
        "|---|---|---|---|---|---|",
    ]
    for model in models:
        spec = ModelSpec.from_config(bundled_config(model) or {}, model)
        launches = spec.num_hidden_layers * layer_launches + beside
        weights = sum(2 * outputs * inputs * count for outputs, inputs, count, _ in _shapes(model)) / 1e9
        token = 2 * 2 * spec.num_hidden_layers * spec.num_key_value_heads * spec.head_dim
        lines += [
            f"| {model} | {num} | {launches:g} | {waits:g} | {weights:.2f} | {num * _KEYS * token / 1e9:.3f} |"
            for num in rows
        ]
    return "\n".join(lines)


def _shapes(model: str) -> Iterator[tuple[int, int, int, bool]]:
    """(outputs, inputs, how many, whether it is quantized) of every matrix that a step multiplies by."""
    config = bundled_config(model)
    assert config is not None, f"{model} is not in configs/models.toml"
    spec = ModelSpec.from_config(config, model)
    for tensor in tensors_of(spec):
        is_head = tensor.role == "lm_head" or (tensor.role == "embedding" and spec.tie_word_embeddings)
        if len(tensor.shape) == 2 and (is_head or tensor.role == "linear"):
            yield tensor.shape[0], tensor.shape[1], tensor.repeat, not is_head


def _after(shape: tuple[int, int, int, bool], bits: float, rows: int) -> float:
    outputs, inputs, count, is_quantized = shape
    number = outputs * inputs
    if not is_quantized or bits == 16:
        return 2.0 * number * count
    return float(count * read_bytes(round(number * bits / 8), number, rows))


def _before(shape: tuple[int, int, int, bool], held: str, bits: float, rows: int) -> float:
    outputs, inputs, count, is_quantized = shape
    number = outputs * inputs
    if not is_quantized or held == "bf16":
        return 2.0 * number * count
    is_unpacked = held != "int8" and not _reads_4_bits()(0, torch.bfloat16, rows, outputs, inputs)
    return count * number * (bits / 8 + 4 * is_unpacked)


def _reads_4_bits() -> Callable[..., bool]:
    package = importlib.util.find_spec("bitsandbytes")
    assert package is not None and package.origin is not None, "bitsandbytes is not installed"
    source = ast.parse((Path(package.origin).parent / "backends" / "cuda" / "ops.py").read_text())
    name = "_gemm_4bit_use_custom_cuda"
    (rule,) = (node for node in source.body if isinstance(node, ast.FunctionDef) and node.name == name)
    rule.decorator_list = []
    names: dict[str, Any] = {
        "torch": torch,
        "_GEMM_4BIT_CUSTOM_FLOOR_M": 4,
        "_gpu_dispatch_props": lambda index: _HOPPER,
    }
    exec(compile(ast.Module([rule], []), "ops.py", "exec"), names)
    made: Callable[..., bool] = names[name]
    return made
