"""What bench/gpu.py writes of its rows: a verdict, and the tables that a reader wants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["is_well", "table"]

_GIB = 1024**3
_GROUPS = ("quality", "offload", "waves", "vllm", "memory")


def is_well(result: dict[str, Any]) -> bool:
    """Whether nothing that was tried is wrong. What was skipped is neither."""
    steps = [row for group in _GROUPS for row in result.get(group, ())]
    return not any(row.get("ok") is False for row in steps)


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    versions = ", ".join(f"{name} {value}" for name, value in result["versions"].items())
    parts = [
        f"# {result['card']}, {result['date']}\n\n    python bench/gpu.py\n",
        f"{versions}. Took {result['seconds']:.0f} s.\n",
        *_limits(result.get("limits", {})),
        *_quality(result.get("quality", ())),
        *_offload(result.get("offload", ())),
        *_waves(result.get("waves", ())),
        *_vllm(result.get("vllm", ())),
        *_memory(result.get("memory", ())),
        *_speed(result.get("memory", ())),
        *_skipped(result),
    ]
    return "\n".join(parts)


def _limits(limits: dict[str, Any]) -> list[str]:
    if not limits:
        return []
    if "error" in limits:
        return [f"Limits could not be measured: {limits['error']}.\n"]
    return [
        f"Limits, measured in the same run: {limits['read_bytes_per_s'] / 1e9:.0f} GB/s of memory, "
        f"{limits['gemm_flop_per_s'] / 1e12:.3g} TFLOP/s in 16 bit; a matrix-vector product reads "
        f"{limits['gemv_bytes_per_s'] / 1e9:.0f} GB/s.\n"
    ]


def _quality(rows: Iterable[dict[str, Any]]) -> list[str]:
    done = [row for row in rows if "mean_kl" in row]
    lines = [
        f"| {row['scheme']} | {row['mean_kl']:.2g} | {row['worst_kl']:.2g} | {100 * row['top1_agreement']:.1f} % "
        f"| {'yes' if row['ok'] else 'NO'} |"
        for row in done
    ]
    head = "| scheme | mean KL | worst KL | same likeliest token | well |\n|---|---|---|---|---|"
    return ["## Quantization, against float32 on the CPU (demo model)\n", head, *lines, ""] if lines else []


def _offload(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        if "places" in row:
            verdict = "every token the same" if row["ok"] else "TOKENS DIFFER"
            lines.append(f"- {row['what']} (over {', '.join(row['places'])}): {row['tokens']} tokens, {verdict}")
        elif "s_per_step" in row:
            planned, measured = _gib(row["planned_on_device_bytes"]), _gib(row["measured_on_device_bytes"])
            lines.append(
                f"- {row['model']}, {_gib(row['offloaded_bytes'])} of its weights offloaded: {row['s_per_step']:.2f} s "
                f"a token, {row['moved_bytes_per_s'] / 1e9:.1f} GB/s moved; on the device {planned} planned, "
                f"{measured} measured"
            )
    return ["## Layers over several places\n", *lines, ""] if lines else []


def _waves(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        if "decode_tokens_per_s" in row:
            lines.append(
                f"- {row['model']}, {row['what']}: {row['decode_tokens_per_s']:.0f} tokens/s, {row['ms_per_step']:.1f} "
                f"ms a step, first tokens of all after {row['first_tokens_s']:.2f} s"
            )
        elif "first_token_s" in row:
            lines.append(
                f"- {row['model']}, {row['what']}: {row['seconds']:.1f} s, of which {row['load_s']:.1f} to load and "
                f"{row['first_token_s']:.1f} to the first token"
            )
    return ["## Many streams, sampling, a start\n", *lines, ""] if lines else []


def _vllm(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = [
        f"| {row['model']} | {row['vllm']} | {row['start_s']:.1f} s | {row['planned_kv_tokens']} "
        f"| {row['measured_kv_tokens']} | {row['streams']} | {row['tokens_per_s']:.0f} |"
        for row in rows
        if "measured_kv_tokens" in row
    ]
    head = "| model | vLLM | start | KV tokens planned | measured | streams | tokens/s |\n|---|---|---|---|---|---|---|"
    return ["## The real vLLM, with random weights\n", head, *lines, ""] if lines else []


def _memory(rows: Iterable[dict[str, Any]]) -> list[str]:
    lines = []
    for row in rows:
        if "memory" not in row:
            continue
        pairs = [(row["plan"][term], row["memory"][term]) for term in _TERMS]
        cells = [f"{_gib(planned)} / {_gib(measured)}" for planned, measured in pairs]
        outside = f"{_gib(row['plan']['runtime_bytes'])} / {_gib(row['memory']['outside_bytes'])}"
        errors = f"{_error(pairs[:1])} | {_error(pairs)}"
        lines.append(f"| {row['model']} | {row['scheme']} | {' | '.join(cells)} | {outside} | {errors} |")
    head = (
        "| model | scheme | weights | KV cache | activations | outside of torch | error, weights | all three |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    title = "## Memory, planned / measured by torch's allocator\n"
    return [title, head, *lines, ""] if lines else []


_TERMS = ("weights_bytes", "kv_cache_bytes", "activations_bytes")


def _error(pairs: list[tuple[int, int]]) -> str:
    planned, measured = (sum(pair[side] for pair in pairs) for side in (0, 1))
    return f"{100 * (planned - measured) / measured:+.1f} %" if measured else "not measured"


def _speed(rows: Sequence[dict[str, Any]]) -> list[str]:
    lines = [
        f"| {row['model']} | {row['scheme']} | {speed['streams']} | {speed['prefill_tokens_per_s']:.0f} "
        f"| {_share(speed['prefill_share_of_limit'])} | {speed['decode_tokens_per_s']:.1f} "
        f"| {_share(speed['decode_share_of_limit'])} | {speed['ms_per_step']:.1f} |"
        for row in rows
        for speed in row.get("speed", ())
    ]
    head = (
        "| model | scheme | streams | prefill tokens/s | of the limit | decode tokens/s | of the limit | ms a step |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    products = [f"- {row['model']}, {row['scheme']}: {one}" for row in rows for one in row.get("products", ())]
    return ["## Speed\n", head, *lines, "", *products, ""] if lines else []


def _share(value: float | None) -> str:
    return "?" if value is None else f"{100 * value:.0f} %"


def _skipped(result: dict[str, Any]) -> list[str]:
    lines = []
    for step in _GROUPS:
        for row in result.get(step, ()):
            reason = row.get("skipped") or row.get("error")
            if reason:
                named = " ".join(str(row[key]) for key in ("model", "scheme") if key in row)
                what = row.get("what", named)
                lines.append(f"- {step}, {what}: {'FAILED: ' if row.get('error') else ''}{reason}")
    return ["## Not measured\n", *lines, ""] if lines else []


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB" if num_bytes >= _GIB // 10 else f"{num_bytes / 1024**2:.1f} MiB"
