"""What failed, by the API's error code or status: a sentence and what to do."""

from __future__ import annotations

__all__ = ["STRINGS", "failure_key"]

STRINGS: dict[str, tuple[str, str]] = {
    "failure.unreachable": ("No connection to qserve.", "无法连接到 qserve。"),
    "failure.unreachable.trying": ("No connection to qserve. Trying again…", "无法连接到 qserve，正在重试……"),
    "failure.broken": (
        "The connection to qserve broke. What had arrived is kept.",
        "与 qserve 的连接中断，已收到的内容会保留。",
    ),
    "failure.timeout": ("qserve did not answer in time.", "qserve 没有及时回答。"),
    "failure.no_json": ("The server's answer can't be read.", "无法读取服务器的回答。"),
    "failure.400": ("The server refused the request.", "服务器拒绝了请求。"),
    "failure.401": ("The server does not accept the API key.", "服务器不接受此 API 密钥。"),
    "failure.403": ("This API key may not do this.", "此 API 密钥没有相应权限。"),
    "failure.404": ("The server does not have this.", "服务器上没有所请求的内容。"),
    "failure.408": ("The request took too long to arrive.", "请求传输时间过长。"),
    "failure.413": ("The message is too long for this server.", "内容过长，服务器不接受。"),
    "failure.422": ("The server refuses this request.", "服务器不处理这个请求。"),
    "failure.429": ("The server has too many requests. Try again in a moment.", "服务器请求过多，请稍后重试。"),
    "failure.500": ("Something broke in the server. Its log has the details.", "服务器内部出错，详情见其日志。"),
    "failure.502": (
        "The model's process ended while it answered. It is being restarted; try again in a moment.",
        "模型进程在回答时中断，正在重新启动，请稍后重试。",
    ),
    "failure.503": (
        "The model is not ready. It starts by itself; try again in a moment.",
        "模型尚未就绪，正在启动，请稍后重试。",
    ),
    "failure.context_length_exceeded": (
        "The conversation is longer than the model can read. Start a new one or shorten the message.",
        "对话超过了模型能读取的长度。请新建对话，或缩短消息。",
    ),
    "failure.worker_unreachable": ("The model's process can't be reached.", "无法连接模型进程。"),
    "failure.memory_low": (
        "The machine has little memory left and takes no new requests now.",
        "机器剩余内存不足，暂不接受新请求。",
    ),
    "failure.worker_not_ready": ("The model is starting or restarting.", "模型正在启动或重新启动。"),
    "failure.draining": ("The service is stopping.", "服务正在停止，不再接受新请求。"),
    "failure.empty_input": ("An empty text can't be scored.", "文本为空，无法评分。"),
    "failure.invalid_value": ("{param} has a value that is not allowed.", "{param} 的取值不被允许。"),
    "failure.model_not_found": ("The server does not serve this model.", "服务器上没有这个模型。"),
    "failure.request_ended_workers": (
        "This request ended the model's process several times and is no longer accepted.",
        "这个请求多次使模型进程中断，服务器不再接受。",
    ),
    "failure.unsupported_field": ("This model does not take {param}.", "此模型不支持 {param}。"),
    "failure.unsupported_value": (
        "This model does not take this value of {param}.",
        "此模型不支持 {param} 的这个取值。",
    ),
    "failure.retry": ("Try again", "重试"),
    "failure.original": ("Server's message", "服务器原文"),
    "failure.file": ("The file can't be scored.", "无法为此文件评分。"),
    "failure.plan": ("The planner did not answer within {seconds} s.", "规划器在 {seconds} 秒内没有返回。"),
    "failure.plan.refused": ("This can't be planned.", "无法规划。"),
}


def failure_key(code: str, status: int) -> str:
    """The row for an error: of its code, else of its status, else of the status's class."""
    if f"failure.{code}" in STRINGS:
        return f"failure.{code}"
    if f"failure.{status}" in STRINGS:
        return f"failure.{status}"
    return "failure.500" if status >= 500 else "failure.400"
