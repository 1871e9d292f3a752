"""Heavy imports stay in their leaves: what answers at once must not load what takes seconds."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from qserve.engines.vllm.engine import ENGINE
from tests.house.sources import PACKAGE, tree_of

TORCH = {"torch", "transformers", "vllm", "accelerate", "bitsandbytes", "gradio", "lm_eval", "ray", "numpy"}
SERVERS = {"fastapi", "starlette", "uvicorn", "uvloop", "aiohttp", "httptools", "pydantic"}
OTHERS = {"rich", "huggingface_hub", "yaml", "asyncio", "openai"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def loaded_by(statement, depth=1):
    """Modules that a fresh interpreter holds after `statement`, by the first `depth` parts of their names."""
    names = f"'.'.join(name.split('.')[:{depth}]) for name in sys.modules"
    code = f"import sys\n{statement}\nsys.stderr.write(' '.join({{{names}}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_the_help_page_loads_nothing_heavy():
    call = "from qserve.cli.main import cli\ncli.main(['--help'], standalone_mode=False)"
    assert not loaded_by(call) & (TORCH | SERVERS | OTHERS)


@pytest.mark.parametrize("command", ["plan", "up", "models"])
def test_the_help_page_of_a_command_loads_no_engine_and_no_server(command):
    call = f"from qserve.cli.main import cli\ncli.main([{command!r}, '--help'], standalone_mode=False)"
    assert not loaded_by(call) & (TORCH | SERVERS)


def test_a_plan_needs_no_engine_and_no_server():
    call = (
        "from qserve.cli.main import cli\n"
        "cli.main(['plan', '--model', 'Qwen/Qwen3-8B', '--gpu', 'rtx-4090'], standalone_mode=False)"
    )
    assert not loaded_by(call) & (TORCH | SERVERS | {"huggingface_hub"})


@pytest.mark.parametrize("module", ["qserve.gateway.app", "qserve.gateway.http.server", "qserve.supervisor"])
def test_the_process_in_front_of_the_workers_loads_no_engine(module):
    assert not loaded_by(f"import {module}") & (TORCH | {"aiohttp", "fastapi", "huggingface_hub"})


def test_what_checks_large_bodies_loads_no_planner():
    """There are three of these processes, in a plan's memory (`qserve.planner.memory.host.LARGE_BODIES`)."""
    read = f"from qserve.worker.wires import wire_named\nwire_named({ENGINE.wire!r})"
    loaded = loaded_by(f"import qserve.gateway.large_bodies\n{read}", depth=4)
    assert "qserve.engines.vllm.wire" in loaded
    assert not loaded & {"qserve.planner", "qserve.engines.vllm.plan"}


def test_what_says_strings_of_the_web_ui_loads_no_gradio():
    assert "gradio" not in loaded_by("import qserve.ui.chat.transcript, qserve.ui.views.training")


def test_no_test_imports_above_what_each_process_of_a_run_would_load_for_it():
    """Every process collects every test, and these take seconds of it."""
    dear = re.compile(r"^(?:import|from) (anthropic|deepspeed|gradio|lm_eval|ray|sklearn|trl|vllm)\b", re.MULTILINE)
    files = [path for path in (PACKAGE.parent / "tests").rglob("*.py") if "node_modules" not in path.parts]
    collected = [
        path for path in files if path.name.startswith(("test_", "conftest")) or path.parent.name == "contracts"
    ]
    assert not [f"{path}: {one[1]}" for path in collected if (one := dear.search(path.read_text()))]


def public_and_bound(tree):
    """The names of `__all__` (None where there is none), and all that the module's top level binds."""
    bound = set()
    public = None
    # What a package's own __init__ gives lazily stands below `if TYPE_CHECKING`.
    typed = [inner for node in tree.body if isinstance(node, ast.If) for inner in node.body]
    for node in (*tree.body, *typed):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            bound.add(node.target.id)
        elif isinstance(node, ast.Assign):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            bound |= names
            if "__all__" in names:
                public = ast.literal_eval(node.value)
    return public, bound


def test_public_names_exist_and_are_public():
    wrong = []
    for path in MODULES:
        public, bound = public_and_bound(tree_of(path))
        if public is not None:
            wrong += [f"{path}: {name} is not defined" for name in set(public) - bound]
            wrong += [f"{path}: {name} is private" for name in public if re.match("_(?!_)", name)]
            wrong += [f"{path}: a name stands twice in __all__"] * (len(public) != len(set(public)))
    assert not wrong


def test_every_module_says_what_it_is():
    without = [path for path in MODULES if not ast.get_docstring(tree_of(path))]
    assert not without
