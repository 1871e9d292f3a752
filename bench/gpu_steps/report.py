"""The tables that bench/gpu.py writes of its rows: planned beside measured."""

from __future__ import annotations

from collections.abc import Iterable

from bench.gpu_steps.order import GROUPS
from bench.gpu_steps.rows import Result, Row, off_by, rows_in, what_of

__all__ = ["table"]

_GIB, _MIB = 1024**3, 1024**2
_TERMS = {
    "weights_bytes": "weights",
    "kv_cache_bytes": "KV cache",
    "activations_bytes": "activations",
    "cuda_graphs_bytes": "graphs",
    "runtime_bytes": "outside of torch",
}


def table(result: Result) -> str:
    """Markdown."""
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    parts = [
        f"# {result['card']}, {result['date']}\n\n    python bench/gpu.py\n",
        f"{versions}. Took {result['seconds']:.0f} s.\n",
        *_limits(result.get("limits") or {}),
        *_kernels(result.get("kernels", ())),
        *_quality(result.get("quality", ())),
        *_memory(rows_in(result)),
        *_speed(rows_in(result), (result.get("limits") or {}).get("measured")),
        *_profile(rows_in(result)),
        *_starts(rows_in(result)),
        *_loads(result),
        *_offload(result.get("offload", ())),
        *_skipped(result),
    ]
    return "\n".join(parts)


def _limits(limits: Row) -> list[str]:
    if "measured" not in limits:
        return [f"Limits could not be measured: {limits['error']}.\n"] if "error" in limits else []
    planned, measured = limits.get("planned") or {}, limits["measured"]

    def beside(name: str, unit: float) -> str:
        return f" (the planner's {planned[name] / unit:.4g})" if name in planned else ""

    return [
        f"Limits, measured in the same run: {measured['read_bytes_per_s'] / 1e9:.0f} GB/s of memory"
        f"{beside('read_bytes_per_s', 1e9)}, {measured['gemm_flop_per_s'] / 1e12:.3g} TFLOP/s in 16 bit"
        f"{beside('gemm_flop_per_s', 1e12)}; a matrix-vector product reads "
        f"{measured['gemv_bytes_per_s'] / 1e9:.0f} GB/s.\n"
    ]


def _kernels(rows: Iterable[Row]) -> list[str]:
    lines = [
        f"| {row['kernel']} | {one['way']} | {one['rows']} | {one['planned_us']:.1f} | {one['us']:.1f} "
        f"| {one['GB_per_s']:.0f} | {one['off_by']:.1g}{'' if one['right'] else ' WRONG'} | {one['first_call_s']:.2f} |"
        for row in rows
        for one in row.get("at", ())
    ]
    head = "kernel | by | rows | µs at the rate of a copy | µs | GB/s | off by | s of the first call"
    return _section("Each kernel by itself", head, lines)


def _quality(rows: Iterable[Row]) -> list[str]:
    lines = [
        f"| {row['scheme']} | {row['mean_kl']:.2g} | {row['worst_kl']:.2g} | {100 * row['top1_agreement']:.1f} % "
        f"| {'yes' if row['ok'] else 'NO'} |"
        for row in rows
        if "mean_kl" in row
    ]
    head = "scheme | mean KL | worst KL | same likeliest token | well"
    return _section("Quantization, against float32 on the CPU (demo model)", head, lines)


def _memory(rows: Iterable[Row]) -> list[str]:
    lines = []
    for row in rows:
        if "load_s" not in row or "measured" not in row:
            continue
        pairs = [(row["planned"][term], row["measured"][term]) for term in _TERMS]
        cells = " | ".join(f"{_gib(planned)} / {_gib(measured)}" for planned, measured in pairs)
        counted = [pair for term, pair in zip(_TERMS, pairs, strict=True) if term != "cuda_graphs_bytes"]
        lines.append(
            f"| {_model(row)} | {row['scheme']} | {cells} | {_error(pairs[:1])} | {_error(counted)} "
            f"| {row['load_s']:.0f} s |"
        )
    head = f"model | scheme | {' | '.join(_TERMS.values())} | error, weights | all but graphs | load"
    return _section("Memory, planned / measured by torch's allocator and the driver", head, lines)


def _speed(rows: Iterable[Row], limits: Row | None) -> list[str]:
    lines = []
    for row in rows:
        measured = row.get("measured", {})
        if "bytes_per_step" in row:
            best = 1000 * row["bytes_per_step"] / limits["read_bytes_per_s"] if limits else None
            lines.append(_speed_line(row, row["planned"]["ms_per_step"], measured["ms_per_step"], best))
        elif "flop" in row:
            best = 1000 * row["flop"] / limits["gemm_flop_per_s"] if limits else None
            lines.append(_speed_line(row, row["planned"]["ms"], measured["ms"], best))
    head = "model | scheme | what | planned ms | ms | off by | tokens/s | of limit | steps by | attention | products"
    return _section("Speed of the transformers engine, planned / measured", head, lines)


def _speed_line(row: Row, planned: float, measured: float, best: float | None) -> str:
    path = row.get("path") or {}
    names = [name for by_rows in path.get("products", {}).values() for some in by_rows.values() for name in some]
    share = "?" if best is None else f"{100 * best / measured:.0f} %"
    return (
        f"| {_model(row)} | {row['scheme']} | {row['what']} | {planned:.2f} | {measured:.2f} "
        f"| {off_by(planned, measured)} | {row['measured']['tokens_per_s']:.1f} | {share} | {path.get('path', '?')} "
        f"| {path.get('attention', '?')} | {', '.join(dict.fromkeys(names))} |"
    )


def _profile(rows: Iterable[Row]) -> list[str]:
    lines = [
        f"| `{one['name']}` | {one['calls']} | {one['us']:.0f} |"
        for row in rows
        if "steps" in row
        for one in row.get("kernels", ())[:20]
    ]
    return _section("Kernels of three decoding steps at 8 streams, and of their prompts", "kernel | calls | µs", lines)


def _starts(rows: Iterable[Row]) -> list[str]:
    lines = []
    for row in rows:
        for role, worker in row.get("workers", {}).items():
            cells = [
                f"{_gib(worker['planned'][term])} / {_gib(measured) if measured is not None else '?'}"
                for term, measured in ((term, worker["measured"].get(term)) for term in _TERMS)
            ]
            tokens = worker["planned"]["kv_cache_tokens"], worker["measured"].get("kv_cache_tokens", "?")
            lines.append(
                f"| {what_of(row)} | {role} | {worker['engine']} | {' | '.join(cells)} | {tokens[0]} / {tokens[1]} "
                f"| {row['ready_s']:.0f} s |"
            )
    head = f"service | worker | engine | {' | '.join(_TERMS.values())} | KV tokens | ready after"
    return _section("Services by `qserve up`: memory, planned / measured", head, lines)


def _loads(result: Result) -> list[str]:
    chats, rewards = [], []
    flop = ((result.get("limits") or {}).get("measured") or {}).get("gemm_flop_per_s")
    for row in rows_in(result):
        measured, planned = row.get("measured", {}), row.get("planned", {})
        if "ttft_ms" in measured:
            cells = [
                f"{planned[name]:.1f} / {measured[name]:.1f}" for name in ("ttft_ms", "tpot_ms", "output_tokens_per_s")
            ]
            chats.append(f"| {what_of(row)} | {' | '.join(cells)} | {measured['p99_tpot_ms']:.1f} |")
        if "texts_per_s" in measured:
            share = f"{100 * row['flop_per_s'] / flop:.0f} %" if flop and "flop_per_s" in row else "?"
            rewards.append(
                f"| {what_of(row)} | {measured['texts_per_s']:.1f} | {measured['tokens_per_s']:.0f} | {share} |"
            )
    head = "service | TTFT ms | TPOT ms | tokens/s | TPOT ms, p99"
    return [
        *_section("Services by `qserve bench`: planned / measured", head, chats),
        *_section("Rewards by `qserve bench`", "service | texts/s | tokens/s | of the rate of a product", rewards),
    ]


def _offload(rows: Iterable[Row]) -> list[str]:
    lines = []
    for row in rows:
        if "places" in row:
            verdict = "every token the same" if row["ok"] else "TOKENS DIFFER"
            lines.append(f"- {row['what']} (over {', '.join(row['places'])}): {row['tokens']} tokens, {verdict}")
        elif "s_per_step" in row:
            planned, measured = _gib(row["planned_on_device_bytes"]), _gib(row["measured_on_device_bytes"])
            lines.append(
                f"- {row['model']}, {_gib(row['offloaded_bytes'])} of its weights in RAM"
                f"{' (pinned)' if row.get('pinned') else ' (not pinned)'}: {row['planned_s_per_step']:.3f} s a token "
                f"planned, {row['s_per_step']:.3f} measured, {row['moved_bytes_per_s'] / 1e9:.1f} GB/s moved; on the "
                f"device {planned} planned, {measured} measured"
            )
    return ["## Layers over several places\n", *lines, ""] if lines else []


def _skipped(result: Result) -> list[str]:
    lines = []
    for group in ("machine", *GROUPS):
        for row in result.get(group, ()):
            reason = row.get("skipped") or row.get("error")
            if reason:
                lines.append(f"- {group}, {what_of(row)}: {'FAILED: ' if row.get('error') else ''}{reason}")
    return ["## Not measured\n", *lines, ""] if lines else []


def _section(title: str, head: str, lines: list[str]) -> list[str]:
    if not lines:
        return []
    rule = "|" + "---|" * (head.count("|") + 1)
    return [f"## {title}\n", f"| {head} |", rule, *lines, ""]


def _model(row: Row) -> str:
    return str(row["model"]).removeprefix("Qwen/")


def _error(pairs: list[tuple[int, int]]) -> str:
    planned, measured = (sum(pair[side] for pair in pairs) for side in (0, 1))
    return f"{100 * (planned - measured) / measured:+.1f} %" if measured else "not measured"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB // 10 else f"{num_bytes / _MIB:.1f} MiB"
