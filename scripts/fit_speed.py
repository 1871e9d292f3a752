"""Writes configs/speed_kernels.toml: the part of bandwidth and peak that kernels reach, fitted to NVIDIA's tables.

    python3 -m venv ../aic && ../aic/bin/pip install aiconfigurator-core==0.12.0 pandas pyarrow scipy
    ../aic/bin/python scripts/fit_speed.py

The package holds measured kernel times (Apache-2.0; parquet files per card and engine release). It needs an environment
of its own: nothing of it is a dependency of qserve. Every fit is of the logarithm, robust, on at most `_MOST_ROWS` rows
drawn with a fixed seed; the last number of each row is the median residual in percent. The forms are those of
qserve/planner/speed/terms/kernels.py, and docs/speed.md derives them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

TARGET = Path(__file__).parent.parent / "configs" / "speed_kernels.toml"
_MOST_ROWS = 2000
_QWEN_WIDTH = 4096
_SECOND_START = (0.5, 1.2, 1.2, 0.8, 1.5)
# Percent. A form that misses a table by more describes other kernels than these; the card takes another's row.
_MOST_RESIDUAL = 50
Columns = dict[str, np.ndarray]
Form = Callable[[np.ndarray, Columns], np.ndarray]


@dataclass(frozen=True)
class Card:
    """A folder of the tables: bytes/s, FLOP/s in 16, 8 and 4 bit."""

    key: str
    folder: str
    bandwidth: float
    peak16: float
    peak8: float = 0.0
    peak4: float = 0.0


CARDS = (
    Card("h100-sxm", "h100_sxm", 3.35e12, 989e12, 1978e12),
    Card("h200", "h200_sxm", 4.8e12, 989e12, 1978e12),
    Card("a100-80gb", "a100_sxm", 2.039e12, 312e12),
    Card("l40s", "l40s", 864e9, 362e12, 733e12),
    Card("rtx-pro-6000", "rtx_pro_6000_server", 1.792e12, 467.8e12, 935.6e12, 1871e12),
    Card("b200", "b200_sxm", 7.7e12, 2250e12, 4500e12, 9000e12),
)

_HEADER = """# The part of a card's bandwidth and peak that kernels reach. Written by scripts/fit_speed.py.
#
# Source: measured kernel times of NVIDIA's package aiconfigurator-core 0.12.0 (Apache-2.0), systems/data/<card>,
# vLLM's collectors; of the A100 the linear attention is SGLang's. Times in us, shares of bandwidth and of the format's
# dense peak; q joins the two bounds as a q-norm. The forms: qserve/planner/speed/terms/kernels.py. The last number of
# every row is the median residual of the fit in percent.
#
# gemm_*     [t0_us, bandwidth share, peak share, q, residual]
# decode_*   attention of one token, by head_dim: [floor_us, bandwidth share, q, ns a token of context, residual]
# prefill_*  causal attention of a prompt, by head_dim: [t0_us, peak share, bandwidth share, residual]
# moe_*      all experts of a layer: [t0_us, bandwidth share, peak share, skew of routing, q, residual]
# reduce_N   all-reduce over N cards: [t0_us, GB/s, residual]
# state_*    gated delta rule: decode [t0_us, bandwidth share, residual], prefill [t0_us, ns a token of the longest
#            prompt, ns a token and head, residual]
"""


def main() -> None:
    folder = Path(importlib.util.find_spec("aiconfigurator_core").origin).parent / "systems" / "data"  # type: ignore
    lines = [_HEADER]
    for card in CARDS:
        lines += [f"[{card.key}]", *_rows(card, folder / card.folder), ""]
        print("\n".join(lines[-30:]), flush=True)
    TARGET.write_text("\n".join(lines).rstrip() + "\n")


def _rows(card: Card, folder: Path) -> list[str]:
    fits = {
        **_gemms(card, _table(folder, "gemm", "gemm_perf")),
        **_decode(card, _table(folder, "attention", "generation_attention_perf")),
        **_prefill(card, _table(folder, "attention", "context_attention_perf")),
        **_experts(card, _tables(folder, "moe", "moe_perf")),
        **_reduce(_table(folder, "comm", "custom_allreduce_perf")),
        **_states(card, _table(folder, "linear_attention", "gdn_perf")),
    }
    return [f"{name} = [{', '.join(f'{value:.4g}' for value in row)}]" for name, row in fits.items()]


def _table(folder: Path, kind: str, name: str) -> pd.DataFrame:
    """The newest of vLLM's tables that has the kind, else SGLang's; latency in us."""
    found = [path for engine in ("vllm", "sglang") for path in sorted(folder.glob(f"{kind}/{engine}/*/{name}.parquet"))]
    if not found:
        return pd.DataFrame()
    of_vllm = [path for path in found if "/vllm/" in str(path)]
    table = pd.read_parquet((of_vllm or found)[-1])
    return table.assign(us=table["latency"] * 1000)


def _tables(folder: Path, kind: str, name: str) -> pd.DataFrame:
    """Of every format the newest of vLLM's tables that has it for models of Qwen's widths, else for others."""
    found: dict[str, pd.DataFrame] = {}
    for path in sorted(folder.glob(f"{kind}/vllm/*/{name}.parquet")):
        for dtype, rows in pd.read_parquet(path).groupby("moe_dtype"):
            fitting = rows[(rows.hidden_size <= _QWEN_WIDTH) & (rows.topk >= 4)]
            if len(fitting) or dtype not in found:
                found[str(dtype)] = fitting if len(fitting) else rows
    table = pd.concat(found.values())
    return table.assign(us=table["latency"] * 1000)


def _gemms(card: Card, table: pd.DataFrame) -> dict[str, list[float]]:
    kinds = {
        "bf16": ("bfloat16", 2.0, card.peak16),
        "fp8": ("fp8", 1.0, card.peak8),
        "fp8_block": ("fp8_block", 1.0, card.peak8),
        "nvfp4": ("nvfp4", 0.5625, card.peak4),
    }
    sized = table[(table.n * table.k >= 1 << 20) & (table.m <= 16384) & (table.n <= 65536)]
    return {
        f"gemm_{name}": _gemm(card, sized[sized.gemm_dtype == dtype], size, peak)
        for name, (dtype, size, peak) in kinds.items()
        if peak and (sized.gemm_dtype == dtype).sum() > 100
    }


def _gemm(card: Card, rows: pd.DataFrame, size: float, peak: float) -> list[float]:
    m, n, k = (rows[name].to_numpy(float) for name in "mnk")
    columns = {
        "memory": (n * k * size + m * k * min(size, 2.0) + m * n * 2) / card.bandwidth * 1e6,
        "math": 2 * m * n * k / peak * 1e6,
    }
    return _fit(_bounded, columns, rows, [4, 0.8, 0.7, 2], [0.5, 0.05, 0.05, 1], [400, 1.2, 1.2, 8])


def _bounded(x: np.ndarray, c: Columns) -> np.ndarray:
    return x[0] + ((c["memory"] / x[1]) ** x[3] + (c["math"] / x[2]) ** x[3]) ** (1 / x[3])


def _decode(card: Card, table: pd.DataFrame) -> dict[str, list[float]]:
    table = _whole_context(table)
    table = table[table.step >= 127]
    fits = {}
    for dim in (64, 128, 256):
        for name, dtype, size in (("bf16", "bfloat16", 2), ("fp8", "fp8", 1)):
            rows = table[(table.head_dim == dim) & (table.kv_cache_dtype == dtype)]
            if len(rows) < 100:
                continue
            context = rows.step.to_numpy(float) + 1
            nbytes = rows.batch_size * context * rows.num_key_value_heads * dim * 2 * size
            columns = {"memory": nbytes.to_numpy(float) / card.bandwidth * 1e6, "context": context}
            fits[f"decode_{name}_{dim}"] = _fit(
                lambda x, c: (x[0] ** x[2] + (c["memory"] / x[1]) ** x[2]) ** (1 / x[2]) + x[3] * c["context"] / 1000,
                columns,
                rows,
                [12, 0.85, 1.5, 0.1],
                [1, 0.1, 1, 0],
                [80, 1.2, 6, 3],
            )
    return fits


def _prefill(card: Card, table: pd.DataFrame) -> dict[str, list[float]]:
    table = _whole_context(table)
    table = table[(table.isl >= 64) & (table.kv_cache_dtype == "bfloat16")]
    fits = {}
    for dim in (64, 128, 256):
        rows = table[table.head_dim == dim]
        if len(rows) < 100:
            continue
        tokens = (rows.batch_size * rows.isl).to_numpy(float)
        heads, kv = rows.num_heads.to_numpy(float), rows.num_key_value_heads.to_numpy(float)
        columns = {
            "math": 2 * tokens * rows.isl.to_numpy(float) * heads * dim / card.peak16 * 1e6,
            "memory": tokens * (2 * heads + 2 * kv) * dim * 2 / card.bandwidth * 1e6,
        }
        fits[f"prefill_{dim}"] = _fit(
            lambda x, c: x[0] + c["math"] / x[1] + c["memory"] / x[2],
            columns,
            rows,
            [14, 0.6, 0.5],
            [1, 0.1, 0.05],
            [100, 1, 4],
        )
    return fits


def _whole_context(table: pd.DataFrame) -> pd.DataFrame:
    """Grouped heads without a window; older tables have no windows at all."""
    table = table[table.window_size == 0] if "window_size" in table else table
    return table[(table.num_heads <= 64) & (table.num_heads >= 2 * table.num_key_value_heads)]


def _experts(card: Card, table: pd.DataFrame) -> dict[str, list[float]]:
    if table.empty:
        return {}
    table = table[(table.moe_ep_size == 1) & (table.distribution == "power_law_1.01") & (table.topk >= 4)]
    table = table[(table.num_experts >= 60) & (table.num_tokens <= 8192) & (table.moe_tp_size <= 8)]
    kinds = {
        "bf16": ("bfloat16", 2.0, card.peak16),
        "fp8": ("fp8", 1.0, card.peak8),
        "fp8_block": ("fp8_block", 1.0, card.peak8),
        "nvfp4": ("nvfp4", 0.5625, card.peak4),
        "int4": ("int4_wo", 0.53, card.peak16),
    }
    return {
        f"moe_{name}": _expert(card, table[table.moe_dtype == dtype], size, peak)
        for name, (dtype, size, peak) in kinds.items()
        if peak and (table.moe_dtype == dtype).sum() > 60
    }


def _expert(card: Card, rows: pd.DataFrame, size: float, peak: float) -> list[float]:
    tokens, experts, chosen = (rows[name].to_numpy(float) for name in ("num_tokens", "num_experts", "topk"))
    weights = 3 * rows.hidden_size.to_numpy(float) * rows.inter_size.to_numpy(float) / rows.moe_tp_size.to_numpy(float)
    columns = {
        "tokens": tokens,
        "experts": experts,
        "share": chosen / experts,
        "expert": weights * size / card.bandwidth * 1e6,
        "math": 2 * tokens * chosen * weights / peak * 1e6,
    }
    low, high = [1, 0.08, 0.03, 0.4, 1], [200, 1.2, 1, 1, 4]
    return _fit(_experts_form, columns, rows, [30, 0.8, 0.35, 0.9, 1.2], low, high)


def _experts_form(x: np.ndarray, c: Columns) -> np.ndarray:
    read = c["experts"] * (1 - (1 - c["share"]) ** (c["tokens"] ** x[3]))
    return x[0] + ((c["expert"] * read / x[1]) ** x[4] + (c["math"] / x[2]) ** x[4]) ** (1 / x[4])


def _reduce(table: pd.DataFrame) -> dict[str, list[float]]:
    table = table[table.backend == "vllm_graph"] if "backend" in table else table
    fits = {}
    for ranks in (2, 4, 8):
        rows = table[(table.num_gpus == ranks) & (table.message_size >= 1024) & (table.message_size <= 1 << 26)]
        columns = {"bytes": rows.message_size.to_numpy(float) * 2}
        if len(rows) > 8:
            fits[f"reduce_{ranks}"] = _fit(
                lambda x, c: x[0] + c["bytes"] / x[1] / 1000, columns, rows, [6, 100], [1, 0.2], [100, 2000]
            )
    return fits


def _states(card: Card, table: pd.DataFrame) -> dict[str, list[float]]:
    if table.empty:
        return {}
    decode = table[(table.phase == "generation") & ~table.kernel_source.str.startswith("causal")]
    state = (decode.batch_size * decode.num_v_heads * 128 * 128 * 4 * 2).to_numpy(float)
    fits = {
        "state_decode": _fit(
            lambda x, c: x[0] + c["memory"] / x[1],
            {"memory": state / card.bandwidth * 1e6},
            decode,
            [5, 0.8],
            [0.5, 0.1],
            [60, 0.9],
        )
    }
    keys = ["batch_size", "seq_len", "num_k_heads", "num_v_heads", "d_model"]
    prefill = table[(table.phase == "context") & (table.num_tokens >= 64) & (table.num_tokens <= 65536)]
    prefill = prefill.groupby(keys, as_index=False).us.sum()  # convolution and rule
    work = (prefill.batch_size * prefill.seq_len * prefill.num_v_heads).to_numpy(float)
    columns = {"length": prefill.seq_len.to_numpy(float), "work": work}
    fits["state_prefill"] = _fit(
        lambda x, c: x[0] + (c["length"] * x[1] + c["work"] * x[2]) / 1000,
        columns,
        prefill,
        [30, 30, 1],
        [1, 0.01, 0.01],
        [400, 300, 30],
    )
    return {name: row for name, row in fits.items() if row[-1] < _MOST_RESIDUAL}


def _fit(form: Form, columns: Columns, rows: pd.DataFrame, start: list, low: list, high: list) -> list[float]:
    picked = np.random.default_rng(0).permutation(len(rows))[:_MOST_ROWS]
    some = {name: values[picked] for name, values in columns.items()}
    measured = rows.us.to_numpy(float)[picked]

    def residuals(x: np.ndarray) -> np.ndarray:
        return np.log(form(x, some) / measured)

    starts = [start, [min(h, max(lo, s * f)) for s, f, lo, h in zip(start, _SECOND_START, low, high, strict=False)]]
    tries = [
        least_squares(residuals, s, bounds=(low, high), loss="soft_l1", f_scale=0.1, x_scale=np.array(start))
        for s in starts
    ]
    found = min(tries, key=lambda found: float(found.cost))
    return [*found.x, 100 * float(np.median(np.abs(np.exp(residuals(found.x)) - 1)))]


if __name__ == "__main__":
    main()
