"""What all pages share: tabs, fields, failures."""

from __future__ import annotations

__all__ = ["SHARED"]

SHARED: dict[str, tuple[str, str]] = {
    "tab.chat": ("Chat", "对话"),
    "tab.score": ("Score", "评分"),
    "tab.memory": ("Memory & latency", "显存与延迟"),
    "tab.train": ("Train", "训练"),
    "tab.plan": ("Plan", "规划"),
    "status.none": ("no model is served", "没有已部署的模型"),
    "field.no_number": (
        "{field}: “{value}” is not a number; leave it empty for the default.",
        "{field}：“{value}”不是数字；留空则使用模型默认值。",
    ),
    "field.no_whole": (
        "{field}: “{value}” is not a whole number; leave it empty for the default.",
        "{field}：“{value}”不是整数；留空则使用默认值。",
    ),
    "failure.plan": ("The planner did not answer within {seconds} s.", "规划器在 {seconds} 秒内没有返回。"),
}
