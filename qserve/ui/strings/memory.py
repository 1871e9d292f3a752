"""The Memory & latency page, and the names of the plan's terms."""

from __future__ import annotations

from qserve.planner.speed.bands import INSIDE_PERCENT
from qserve.planner.term import COLUMNS
from qserve.ui.strings.sentences.formulas import FORMULAS

__all__ = ["STRINGS"]

STRINGS: dict[str, tuple[str, str]] = {
    "tab.memory": ("Memory & latency", "显存与延迟"),
    "memory.refresh": ("Refresh", "刷新"),
    "memory.report": ("Full report", "完整报告"),
    "memory.live": ("Current load", "实时"),
    "memory.live.follow": ("Update every 2 s", "每 2 秒刷新"),
    "memory.kv_use": ("KV cache in use", "KV 缓存占用"),
    "memory.running": ("running", "运行中"),
    "memory.waiting": ("waiting", "排队中"),
    "memory.tokens_per_s": ("tokens/s", "词元/秒"),
    "memory.rewards_per_s": ("texts/s scored", "评分文本/秒"),
    "memory.memory": ("Memory: planned and measured", "内存：计划与实测"),
    "memory.planned": ("planned", "计划"),
    "memory.measured": ("measured", "实测"),
    "memory.of": ("{used} of {total}", "{used} / {total}"),
    "memory.term": ("Term", "项目"),
    "memory.beside": ("Other processes", "模型之外的进程"),
    "memory.not_running": ("not running", "未运行"),
    "memory.difference": ("Difference", "差异"),
    "memory.source": ("Source", "测量方式"),
    "memory.latency": ("Latency", "延迟"),
    "memory.no_requests": ("No requests yet.", "尚无请求。"),
    "memory.ttft": ("Time to first token", "首词元时间"),
    "memory.tpot": ("Time per output token", "每词元时间"),
    "memory.planned_band": (f"planned mean ({INSIDE_PERCENT} % band)", f"计划平均（{INSIDE_PERCENT} % 区间）"),
    "memory.measured_mean": ("measured mean", "实测平均"),
    "memory.measured_p50": ("measured p50", "实测 p50"),
    "memory.others": (
        "Other programs used {percent} % of the processors meanwhile; the plan assumes none.",
        "期间其他程序占用了本机 {percent}% 的处理器时间；计划假定没有其他程序。",
    ),
    "memory.planned_latency": (
        "The most recent streamed answers: latency as planned for these requests, and as measured.",
        "最近的流式回答：对这些请求计划的延迟与实测的延迟。",
    ),
    "memory.itl": ("Time between tokens", "词元间隔"),
    "memory.e2e": ("End to end", "整个请求"),
    "memory.queue": ("Time in the queue", "排队时间"),
    "memory.status": ("Status", "状态"),
    "memory.count": ("Requests", "请求数"),
    "memory.start": ("Start-up", "启动耗时"),
    "memory.runs": ("Runs", "历史运行"),
    "memory.run": ("Run", "运行"),
    "memory.when": ("Started", "开始时间"),
    "memory.mean": ("mean", "平均"),
    "memory.duration": ("Duration", "时长"),
    "memory.errors": ("Errors", "错误"),
    "memory.task": ("Task", "任务"),
    "memory.metric": ("Metric", "指标"),
    "memory.value": ("Value", "数值"),
    "memory.models": ("Models", "模型"),
    "memory.evals": ("Evaluations", "评测"),
    "memory.comparisons": ("Quantizations compared", "量化对比"),
    **{f"term.{column}": (name, FORMULAS[name]) for column, name in COLUMNS.items()},
    "term.used_by_others": ("other programs", "其他程序"),
    "term.resident": ("whole process (RSS)", "进程常驻内存（RSS）"),
}
