"""The Score page."""

from __future__ import annotations

__all__ = ["STRINGS"]

STRINGS: dict[str, tuple[str, str]] = {
    "tab.score": ("Score", "评分"),
    "score.prompt": ("Prompt", "提示"),
    "score.answer.1": ("Answer 1", "回答 1"),
    "score.answer.2": ("Answer 2", "回答 2"),
    "score.answer.3": ("Answer 3", "回答 3"),
    "score.answer.4": ("Answer 4", "回答 4"),
    "score.reference": ("Reference answer (for rules and judges)", "参考答案（供规则或评审比较）"),
    "score.score": ("Score", "评分"),
    "score.model": ("Reward model", "奖励模型"),
    "score.clear": ("Clear", "清空"),
    "score.examples": ("Examples", "示例"),
    "score.steps": ("One step per line (process reward model)", "回答按行分步（过程奖励模型）"),
    "score.needs": ("Enter a prompt and at least one answer.", "请填写提示和至少一个回答。"),
    "score.margin": ("margin of the best over the second", "最优与次优的差"),
    "score.probability": ("probability that the best is preferred to the second", "最优回答优于次优的概率"),
    "score.answer": ("Answer", "回答"),
    "score.reward": ("Reward", "奖励"),
    "score.attributes": ("Attributes and their weights in the reward", "各项属性及其在奖励中的权重"),
    "score.num_tokens": ("Tokens", "词元"),
    "score.format": ("format", "格式"),
    "score.pooling": ("pooling", "池化"),
    "score.dtype": ("dtype", "精度"),
    "score.quant": ("quant", "量化"),
    "score.file": ("Score a file", "偏好对文件"),
    "score.file.info": (
        "JSONL, CSV or Parquet, with the fields prompt, chosen and rejected, or prompt and response.",
        "JSONL、CSV 或 Parquet，字段为 prompt、chosen、rejected，或 prompt、response。",
    ),
    "score.run": ("Score the file", "为文件评分"),
    "score.progress": ("{done} of {total} scored", "已评分 {done} / {total}"),
    "score.accuracy": ("accuracy", "准确率"),
    "score.pairs": ("pairs", "偏好对"),
    "score.texts": ("texts", "文本"),
    "score.mean_margin": ("mean margin", "平均差值"),
    "score.ties": ("ties", "平局"),
    "score.histogram": ("Pairs by margin (chosen − rejected)", "按差值统计的偏好对数（chosen 减 rejected）"),
    "score.rewards": ("Texts by reward", "按奖励统计的文本数"),
    "score.download": ("Download the scored file", "下载评分结果"),
    "score.no_file": ("Choose a file first.", "请先选择文件。"),
}
