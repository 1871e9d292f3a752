"""A page of the web UI is added in three files: its class, its strings, its row."""

from __future__ import annotations

from pathlib import Path

from tests.house.copied_package import CopiedPackage

PAGE = Path(__file__).with_name("clock_page.py").read_text()
STRINGS = '''"""The clock page."""

STRINGS: dict[str, tuple[str, str]] = {"tab.clock": ("Clock", "时钟"), "clock.again": ("From zero", "归零")}
'''
CODE = """
import asyncio, json, os
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
from qserve.ui.process.app import lean_import
with lean_import():
    import gradio
from qserve.ui.client.served_models import ServedModels
from qserve.ui.pages import frame
from qserve.ui.settings import UISettings
from qserve.ui.strings import i18n, translate

async def served_models(api):
    return ServedModels(chat=("demo",))

frame.served_models = served_models
blocks = frame.build_blocks(UISettings())
config = blocks.get_config_file()
names = {one["id"]: one["props"].get("elem_id") or one["props"].get("id") or one["type"]
         for one in config["components"]}
look = next(one for one in blocks.fns.values() if one.name == "looked")
update = {names[part._id]: value for part, value in asyncio.run(look.fn("en", None)).items()}
print(json.dumps({
    "tabs": [[one["props"]["id"], one["props"]["visible"]] for one in config["components"] if one["type"] == "tabitem"],
    "events": [[names.get(target), event, [names[part] for part in one["outputs"]]]
               for one in config["dependencies"] for target, event in one["targets"]],
    "update": {name: value for name, value in update.items() if name.startswith(("clock", "qs-clock"))},
    "titles": [translate(language, "tab.clock") for language in ("en", "zh-CN")],
    "in_browser": i18n().translations["zh-CN"]["qs.clock.again"],
}))
"""


def test_a_new_page_is_three_files(tmp_path: Path) -> None:
    package = CopiedPackage(tmp_path)
    package.add("qserve/ui/pages/clock.py", PAGE)
    package.add("qserve/ui/strings/clock.py", STRINGS)
    table = "qserve/ui/pages/table.py"
    package.insert(table, "from qserve.ui.pages.memory", "from qserve.ui.pages.clock import ClockPage\n")
    package.insert(table, "MemoryPage, ", "ClockPage, ")
    assert len(package.touched) == 3
    told = package.run(CODE)
    assert told["tabs"] == [
        ["chat", True],
        ["score", False],
        ["clock", False],
        ["memory", False],
        ["train", False],
        ["plan", True],
    ]
    assert told["titles"] == ["Clock", "时钟"] and told["in_browser"] == "归零"
    assert told["update"]["qs-clock-names"] == "demo" and told["update"]["clock"]["visible"] is True
    opened = [outputs for target, event, outputs in told["events"] if (target, event) == ("clock", "select")]
    assert opened == [["timer"], ["timer", "timer"]], "its own begins, the other two stop"
    assert ["chat", "select", ["timer"] * 3] in told["events"]
    assert ["plan", "select", ["timer"] * 3] in told["events"]
