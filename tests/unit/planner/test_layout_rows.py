"""The picture of a layout: each place, its layers, its bytes."""

from __future__ import annotations

from pathlib import Path

from qserve.planner.layout_rows import layout_rows
from qserve.supervisor.screen import ReadyWorker, ready_rows
from qserve.units import format_bytes
from tests.unit.planner.test_device_map import machine, plan_of


def test_one_place_needs_no_picture() -> None:
    assert layout_rows(plan_of("Qwen/Qwen3-8B", machine(80))) == []
    assert layout_rows(plan_of("Qwen/Qwen3-0.6B", machine())) == []


def test_two_cards_and_ram() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(24, 24, ram_gib=64), offload="cpu", max_model_len=4096)
    first, second, ram = layout_rows(plan)
    placed = plan.placement.device_map
    assert isinstance(placed, dict)
    ends = [max(i for i in range(64) if placed[f"model.layers.{i}"] == place) for place in (0, 1)]
    assert first.startswith("card 0  █")
    assert f"layers 0–{ends[0]}, embeddings" in first
    assert f"layers {ends[0] + 1}–{ends[1]}, head" in second
    assert f"layers {ends[1] + 1}–63" in ram
    for row, device in zip((first, second), plan.devices, strict=True):
        assert f"{format_bytes(device.weights_bytes)}, and {format_bytes(device.kv_cache_bytes)} of KV cache" in row
    offloaded = format_bytes(plan.placement.offloaded_bytes["cpu"])
    assert f"{offloaded}, sent to card 0 for every step" in ram
    assert max(len(line) for row in (first, second, ram) for line in row.splitlines()) <= 80
    # Together the bars fill the model once: cells at a border may belong to two places.
    start = first.index("█")
    bars = [row[start : start + 28] for row in (first, second, ram)]
    assert all(any(bar[cell] == "█" for bar in bars) for cell in range(28))


def test_a_cpu_and_its_disk() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(ram_gib=48), offload="disk", max_model_len=2048)
    ram, disk = layout_rows(plan)
    assert ram.startswith("RAM")
    assert "sent to the CPU for every step" in disk


def test_up_shows_it_as_well() -> None:
    plan = plan_of("Qwen/Qwen3-32B", machine(48, 48))
    worker = ReadyWorker("chat", ("m",), plan, memory={}, phases_s={})
    rows = ready_rows("http://127.0.0.1:8000", [worker], has_key=True, logs=Path("logs"))
    drawn = [text for name, text in rows if "█" in text]
    assert drawn == layout_rows(plan)
    assert [name for name, text in rows if "█" in text] == ["Layers", ""]
