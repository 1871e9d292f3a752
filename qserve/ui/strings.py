"""Every word of the pages, in English and 简体中文: one row a string.

Gradio's labels are translated in the browser (`marked`); what this process writes itself, by `translate`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gradio as gr

__all__ = ["LANGUAGES", "STRINGS", "heading", "i18n", "marked", "translate"]

LANGUAGES = {"en": "English", "zh-CN": "简体中文"}
_PREFIX = "qs."

STRINGS: dict[str, tuple[str, str]] = {
    # Around the pages
    "tab.chat": ("Chat", "对话"),
    "tab.score": ("Score", "评分"),
    "tab.memory": ("Memory & latency", "显存与延迟"),
    "tab.train": ("Train", "训练"),
    "tab.plan": ("Plan", "规划"),
    "status.none": ("no model is served", "没有已部署的模型"),
    # Chat
    "chat.question": ("Your message", "你的消息"),
    "chat.placeholder": (
        "Type a message. Enter sends, Shift+Enter adds a line.",
        "输入问题。回车发送，Shift+回车换行。",
    ),
    "chat.send": ("Send", "发送"),
    "chat.stop": ("Stop", "停止"),
    "chat.again": ("Regenerate", "重新生成"),
    "chat.continue": ("Continue", "续写"),
    "chat.new": ("New", "新对话"),
    "chat.export": ("Export JSON", "导出 JSON"),
    "chat.conversation": ("Conversation", "对话"),
    "chat.second": ("Second answer", "对照回答"),
    "chat.empty": (
        "**What would you like to ask?**\n\nConversations stay in this browser.",
        "**想问点什么？**\n\n对话只保存在本浏览器中。",
    ),
    "chat.history": ("Conversations", "历史对话"),
    "chat.history.none": ("None yet.", "暂无。"),
    "chat.copy_of": ("copy", "副本"),
    "chat.forked": (
        "This conversation was continued in another tab. This version is kept as a copy.",
        "此对话已在另一个标签页中继续。你在这里的内容已另存为副本。",
    ),
    "chat.delete": ("Delete", "删除"),
    "chat.model": ("Model", "模型"),
    "chat.settings": ("Settings", "设置"),
    "chat.system": ("System prompt", "系统提示词"),
    "chat.default": ("default", "模型默认"),
    "chat.temperature": ("Temperature", "温度"),
    "chat.top_p": ("Top p", "Top p"),
    "chat.top_k": ("Top k", "Top k"),
    "chat.min_p": ("Min p", "Min p"),
    "chat.repetition_penalty": ("Repetition penalty", "重复惩罚"),
    "chat.max_tokens": ("Max tokens", "最大词元数"),
    "chat.seed": ("Seed", "随机种子"),
    "chat.thinking": ("Thinking", "思考"),
    "chat.thinking.auto": ("default", "模型默认"),
    "chat.thinking.on": ("on", "开"),
    "chat.thinking.off": ("off", "关"),
    "chat.best_of": ("Best of N", "N 选最优"),
    "chat.best_of.info": ("Generate N answers; the reward model ranks them.", "生成 N 个回答，由奖励模型排序。"),
    "chat.compare": ("Side by side", "并排对比"),
    "chat.compare.info": ("A second model or other settings beside the first.", "同时用另一个模型或另一组参数回答。"),
    "chat.second_model": ("Second model", "第二个模型"),
    "chat.second_temperature": ("Second temperature", "第二个温度"),
    "chat.second_system": ("Second system prompt", "第二个系统提示词"),
    "chat.no_model": (
        "No chat model is ready on this server. {why}",
        "此服务器上暂时没有可对话的模型。{why}",
    ),
    "chat.thoughts": ("Thinking", "思考过程"),
    "chat.thinking_now": ("Thinking …", "思考中……"),
    "chat.copy": ("Copy", "复制"),
    "chat.copied": ("Copied", "已复制"),
    "chat.tokens_per_s": ("{value} tokens/s", "{value} 词元/秒"),
    "chat.ttft": ("first token after {value} ms", "首词元 {value} 毫秒"),
    "chat.tokens": ("{prompt} + {completion} tokens", "{prompt} + {completion} 词元"),
    "chat.reward": ("reward {value}", "奖励 {value}"),
    "chat.stopped": ("stopped", "已停止"),
    "chat.length": ("length limit reached", "达到长度上限"),
    "chat.best": ("best of {count}", "{count} 个中最优"),
    "chat.other": ("#{rank} of {count}", "第 {rank} 名，共 {count} 个"),
    "chat.no_reward": ("The reward model returned no score: {why}", "奖励模型未能评分：{why}"),
    "chat.equal": (
        "At temperature 0 all answers are identical; best of N needs a higher temperature.",
        "温度为 0 时所有回答都相同，N 选最优需要更高的温度。",
    ),
    # Score
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
    "score.needs": (
        "Enter a prompt and at least one answer.",
        "请填写提示和至少一个回答。",
    ),
    "score.margin": ("margin of the best over the second", "最优与次优的差"),
    "score.probability": ("probability that the best is preferred to the second", "最优回答优于次优的概率"),
    "score.answer": ("Answer", "回答"),
    "score.reward": ("Reward", "奖励"),
    "score.attributes": ("Attributes and their weights in the reward", "各项属性及其在奖励中的权重"),
    "score.num_tokens": ("Tokens", "词元"),
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
    # Memory and latency
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
    "memory.planned_band": ("planned mean (80 % band)", "计划平均（80 % 区间）"),
    "memory.measured_mean": ("measured mean", "实测平均"),
    "memory.measured_p50": ("measured p50", "实测 p50"),
    "memory.others": (
        "Other programs took {percent} % of this machine's processors meanwhile; the plan assumes none.",
        "期间其他程序占用了本机 {percent}% 的处理器时间；计划假定没有其他程序。",
    ),
    "memory.planned_latency": (
        "The most recent streamed answers: latency as planned for these requests, and as measured.",
        "最近的流式回答与计划对同样请求的预测：",
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
    "memory.failed": ("not available: {why}", "无法获取：{why}"),
    # Terms of memory
    "term.weights": ("weights", "权重"),
    "term.kv_cache": ("KV cache", "KV 缓存"),
    "term.activations": ("activations", "激活"),
    "term.cuda_graphs": ("CUDA graphs", "CUDA 图"),
    "term.runtime": ("runtime", "运行时"),
    "term.used_by_others": ("other programs", "其他程序"),
    "term.resident": ("process, resident", "进程常驻内存"),
    # Training runs
    "train.run": ("Training run", "训练任务"),
    "train.state": ("state", "状态"),
    "train.running": ("running", "运行中"),
    "train.ended": ("ended", "已结束"),
    "train.stopped": ("stopped", "已停止"),
    "train.failed": ("failed", "失败"),
    "train.died": ("killed", "被终止"),
    "train.step": ("step", "步"),
    "train.loss": ("Loss", "损失"),
    "train.reward": ("Reward", "奖励"),
    "train.accuracy": ("Accuracy", "准确率"),
    "train.learning_rate": ("Learning rate", "学习率"),
    "train.tokens_per_s": ("Tokens per second", "词元/秒"),
    "train.step_s": ("per step", "每步耗时"),
    "train.left": ("remaining", "剩余"),
    "train.held_out": ("held-out accuracy", "留出集正确率"),
    "train.training": ("training", "训练"),
    "train.evaluation": ("evaluation", "评估"),
    "train.no_steps": ("No steps yet.", "尚未完成任何一步。"),
    "train.memory": ("Memory: planned and measured", "内存：计划与实测"),
    "train.phase": ("planned peak: the {phase} phase", "计划中占用最高的阶段：{phase}"),
    "train.peak": ("peak, {phase}", "峰值，{phase}"),
    "train.before": ("before the model", "加载模型前"),
    "train.gradients": ("gradients", "梯度"),
    "train.optimizer": ("optimizer", "优化器"),
    "train.gathered": ("gathered and in transit", "聚集与传输中"),
    "train.activations": ("activations, logits, temporaries", "激活、logits 与临时量"),
    "train.engine": ("engine for rollouts", "采样引擎"),
    "train.rollouts": ("Rollouts", "采样结果"),
    "train.prompt": ("prompt", "提示"),
    "train.answer": ("answer", "回答"),
    "train.advantage": ("advantage", "优势"),
    "train.again": ("Command and configuration", "命令与配置"),
    "train.none": (
        "No training runs yet. Start one, and its curves appear here:",
        "这里还没有训练记录。启动一个，曲线会自动出现：",
    ),
    "train.not_kept": ("This server stores no runs.", "此服务器不保存运行记录。"),
    # Plan
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
    "plan.weights_are": ("weights", "权重"),
    "plan.context_is": ("context", "上下文"),
    "plan.at_once": ("full-length requests at once", "满长度并发请求"),
    "plan.kv_tokens": ("tokens in the KV cache", "KV 缓存词元数"),
    "plan.suggestions": ("What would fit", "可行的改法"),
    "plan.notes": ("Notes", "须知"),
    "plan.command": ("Command line", "命令行"),
    "plan.term": ("Term", "项目"),
    "plan.formula": ("Formula", "公式"),
    "plan.layouts": ("Layouts for this load", "此负载下的部署方案"),
    "plan.layout": ("Layout", "方案"),
    "plan.each": ("each", "每张"),
    "plan.cards": ("Cards", "显卡数"),
    "plan.needs_model": ("Enter a model.", "请填写模型。"),
    # Failures
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


@cache
def i18n() -> gr.I18n:
    """As Gradio has them. Imported here: it takes seconds, and `translate` needs none of it."""
    import gradio as gr

    return gr.I18n(
        **{
            language: {_PREFIX + key: row[column] for key, row in STRINGS.items()}
            for column, language in enumerate(LANGUAGES)
        }
    )


def marked(key: str) -> Any:
    """A label that the browser translates. Raises KeyError for a key that no row has."""
    STRINGS[key]
    return i18n()(_PREFIX + key)


def translate(language: str, key: str, **values: Any) -> str:
    """The string in one language, English where the language is none of ours."""
    languages = list(LANGUAGES)
    return STRINGS[key][languages.index(language) if language in languages else 0].format(**values)


def heading(language: str, key: str) -> str:
    """The string as the head of a column."""
    text = translate(language, key)
    return text[:1].upper() + text[1:]
