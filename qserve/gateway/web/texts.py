"""Texts of the static pages, in English and Chinese."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from starlette.types import Scope

from qserve.gateway.auth import header

__all__ = ["TEXTS", "language"]

TEXTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "en": {
            "sign_in": "Sign in",
            "ask": "This server requires an API key. Enter it once; this browser stays signed in for a day.",
            "key": "API key",
            "wrong": "This key is not valid on this server.",
            "bounded": "This key is for the API alone: what the pages ask would not count for its limits.",
            "moment": "One moment",
            "starting": "The web interface is starting",
            "starting_text": "It takes a few seconds; this page reloads by itself. The API is already available.",
            "again": "The web interface is restarting",
            "again_text": "Its process ended: {detail}. The models and the API are not affected; "
            "this page reloads by itself.",
            "failed": "The web interface could not be started",
            "failed_text": "Reload this page to try again. The models and the API are not affected. The reason:",
            "missing": "The web interface is not installed",
            "missing_text": "The API works without it. Install it on the server with this command, then restart "
            "qserve:",
            "stopping": "The server is stopping",
            "stopping_text": "Running requests finish; new ones are refused.",
        },
        "zh": {
            "sign_in": "登录",
            "ask": "此服务器受 API 密钥保护。只需输入一次，此浏览器将保持登录一天。",
            "key": "API 密钥",
            "wrong": "这不是此服务器的密钥。",
            "bounded": "此密钥仅用于 API：网页中的请求不会计入其限额。",
            "moment": "请稍候",
            "starting": "网页界面正在启动",
            "starting_text": "需要几秒钟，页面会自动继续。在此期间 API 照常响应。",
            "again": "网页界面正在重新启动",
            "again_text": "其进程已结束：{detail}。模型和 API 不受影响，页面会自动继续。",
            "failed": "网页界面无法启动",
            "failed_text": "重新打开此页面可再试一次。模型和 API 不受影响。原因：",
            "missing": "未安装网页界面",
            "missing_text": "API 无需它也能工作。请在服务器上用以下命令安装，然后重新启动 qserve：",
            "stopping": "服务器正在停止",
            "stopping_text": "正在处理的请求会完成，不再接受新请求。",
        },
    }
)


def language(scope: Scope) -> str:
    """`zh` or `en`, by Accept-Language; English by default."""
    best, best_weight = "en", 0.0
    for part in header(scope, b"accept-language").decode("latin-1").lower().split(","):
        tag, _, parameter = part.strip().partition(";")
        name, weight = tag.partition("-")[0], _weight(parameter)
        if name in TEXTS and weight > best_weight:
            best, best_weight = name, weight
    return best


def _weight(parameter: str) -> float:
    try:
        return float(parameter.strip().removeprefix("q=")) if parameter else 1.0
    except ValueError:
        return 0.0
