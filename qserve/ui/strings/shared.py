"""What all pages share: the frame around them, fields."""

from __future__ import annotations

__all__ = ["STRINGS"]

STRINGS: dict[str, tuple[str, str]] = {
    "page.restarting": (
        "The web UI is restarting. This page reloads by itself; the models are not affected.",
        "网页界面正在重新启动，页面会自动继续。模型不受影响。",
    ),
    "page.more_tabs": ("More tabs", "更多标签页"),
    "page.number": ("number input for ", "数值："),
    "page.slider": ("range slider for ", "滑块："),
    "page.undo": ("undo", "撤销"),
    "page.upload": ("File upload", "上传文件"),
    "page.sign_out": ("Sign out", "退出登录"),
    "status.none": ("no model is served", "没有已部署的模型"),
    "field.no_number": (
        "{field}: “{value}” is not a number; leave it empty for the default.",
        "{field}：“{value}”不是数字；留空则使用模型默认值。",
    ),
    "field.no_whole": (
        "{field}: “{value}” is not a whole number; leave it empty for the default.",
        "{field}：“{value}”不是整数；留空则使用默认值。",
    ),
}
