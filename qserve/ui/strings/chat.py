"""The Chat page."""

from __future__ import annotations

__all__ = ["STRINGS"]

STRINGS: dict[str, tuple[str, str]] = {
    "tab.chat": ("Chat", "对话"),
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
    "chat.best_of.info": (
        "Generate N answers; the reward model ranks them. Without a temperature, 0.7 is used.",
        "生成 N 个回答，由奖励模型排序。未填写温度时使用 0.7。",
    ),
    "chat.compare": ("Side by side", "并排对比"),
    "chat.compare.info": (
        "Also asks a second model, or the same one with other settings.",
        "同时用另一个模型或另一组参数回答。",
    ),
    "chat.second_model": ("Second model", "第二个模型"),
    "chat.second_temperature": ("Second temperature", "第二个温度"),
    "chat.second_system": ("Second system prompt", "第二个系统提示词"),
    "chat.no_model": ("No chat model is ready on this server. {why}", "此服务器上暂时没有可对话的模型。{why}"),
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
    "chat.same": ("{count} identical", "{count} 个相同"),
    "chat.all_same": (
        "All {count} answers are identical. Set a higher temperature in Settings to get different ones.",
        "{count} 个回答完全相同。要得到不同的回答，请在“设置”中提高温度。",
    ),
    "chat.all_same.at": (
        "All {count} answers are identical at temperature {temperature}. "
        "Set a higher one in Settings to get different answers.",
        "温度为 {temperature} 时，{count} 个回答完全相同。要得到不同的回答，请在“设置”中提高温度。",
    ),
    "chat.all_same.greedy": (
        "All {count} answers are identical: at temperature {temperature} the model always picks the likeliest token. "
        "Set a higher temperature in Settings.",
        "{count} 个回答完全相同：温度为 {temperature} 时，模型总是选择最可能的词元。请在“设置”中提高温度。",
    ),
}
