"""The Train page."""

from __future__ import annotations

__all__ = ["STRINGS"]

STRINGS: dict[str, tuple[str, str]] = {
    "tab.train": ("Train", "训练"),
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
