"""The Train page."""

from __future__ import annotations

__all__ = ["TRAIN"]

TRAIN: dict[str, tuple[str, str]] = {
    "train.run": ("Training run", "训练任务"),
    "train.state": ("state", "状态"),
    "train.running": ("running", "运行中"),
    "train.ended": ("ended", "已结束"),
    "train.stopped": ("stopped", "已停止"),
    "train.failed": ("failed", "失败"),
    "train.failed_because": ("The training failed.", "训练失败。"),
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
    "train.fault_worse": (
        "This model is worse than guessing, which gets half of the pairs right. Make sure that “chosen” is the better "
        "answer everywhere in the data.",
        "该模型不如随机猜测（随机猜测的正确率为一半）。请确认数据中的 chosen 都是更好的回答。",
    ),
    "train.fault_unclear": (
        "The held-out pairs do not show that this model is better than guessing. Train longer, on more data, or hold "
        "out more pairs.",
        "留出集未能证明该模型优于随机猜测。请训练更久、使用更多数据，或留出更多的回答对。",
    ),
    "train.fault_mean": (
        "This model predicts no score better than the mean of that score does. Train longer, or on more data.",
        "该模型对任何分数的预测都不优于该分数的平均值。请训练更久，或使用更多数据。",
    ),
    "train.training": ("training", "训练"),
    "train.smoothed": ("training, smoothed", "训练（平滑）"),
    "train.evaluation": ("evaluation", "评估"),
    "train.no_steps": ("No steps yet.", "尚未完成任何一步。"),
    "train.memory": ("Memory: planned and measured", "内存：计划与实测"),
    "train.phase": ("planned peak: the {phase} phase", "计划中占用最高的阶段：{phase}"),
    "train.peak": ("peak, {phase}", "峰值，{phase}"),
    "train.before": ("process before the model", "加载模型前的进程"),
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
}
