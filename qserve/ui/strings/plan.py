"""The Plan page."""

from __future__ import annotations

__all__ = ["PLAN"]

PLAN: dict[str, tuple[str, str]] = {
    "plan.intro": (
        "Will it fit? Only config.json and safetensors headers are downloaded.",
        "能放得下吗？只读取 config.json 与 safetensors 文件头，不下载权重。",
    ),
    "plan.model": ("Model", "模型"),
    "plan.model.info": ("A folder, a hub id, an alias, or demo.", "文件夹、hub 名称、别名，或 demo。"),
    "plan.gpu": ("Cards", "显卡"),
    "plan.gpu.info": (
        "`here`: this machine. Or rtx-4090:2, h100-80gb, memory=24GiB,sm=89, none.",
        "`here`：本机。或 rtx-4090:2、h100-80gb、memory=24GiB,sm=89、none。",
    ),
    "plan.count": ("How many", "数量"),
    "plan.size": ("Size", "大小"),
    "plan.quant": ("Quantization", "量化"),
    "plan.context": ("Context", "上下文"),
    "plan.users": ("Requests", "并发请求"),
    "plan.free": ("all that fit", "最大"),
    "plan.engine": ("Engine", "引擎"),
    "plan.reward": ("Reward model", "奖励模型"),
    "plan.other": ("Other flags of qserve plan", "qserve plan 的其他参数"),
    "plan.apply": ("Apply", "试一试"),
    "plan.optional": ("none", "无"),
    "plan.plan": ("Plan", "规划"),
    "plan.fits": ("It fits", "放得下"),
    "plan.fits_not": ("It does not fit", "放不下"),
    "plan.engine_is": ("engine", "引擎"),
    "plan.weights_are": ("quantization", "量化"),
    "plan.context_is": ("context", "上下文"),
    "plan.at_once": ("requests of full length at once", "满长度并发请求"),
    "plan.kv_tokens": ("tokens in the KV cache", "KV 缓存词元数"),
    "plan.suggestions": ("What would fit", "可行的改法"),
    "plan.notes": ("Notes", "须知"),
    "plan.command": ("Command line", "命令行"),
    "plan.term": ("Term", "项目"),
    "plan.formula": ("Formula", "公式"),
    "plan.speed": ("Speed at {load}: {input} + {output} tokens", "速度（{load}）：{input} + {output} 词元"),
    "plan.most_requests": ("requests/s at most", "最多请求/秒"),
    "plan.layouts": ("Layouts for this load", "此负载下的部署方案"),
    "plan.layout": ("Layout", "方案"),
    "plan.each": ("each", "每张"),
    "plan.cards": ("Cards", "显卡数"),
    "plan.needs_model": ("Enter a model.", "请填写模型。"),
}
