"""An engine is a folder and a registry line: nothing compares the name of an engine to know what to do."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "qserve"
NAMES = ("vllm", "transformers")

# How many comparisons are still there, file by file; a number may only fall.
STILL = Counter(
    {
        "cli/up/hosting.py": 1,
        "detect/engines.py": 4,
        "engine/base.py": 1,
        "engine/vllm/counted_flags.py": 1,
        "engine/vllm/parser.py": 1,
        "gateway/endpoints.py": 1,
        "planner/speed/estimate.py": 1,
        "planner/speed/plan.py": 2,
        "planner/speed/search.py": 3,
        "reward/__main__.py": 1,
        "runs/residuals.py": 2,
        "supervisor/choice.py": 2,
    }
)


def comparisons(path: Path) -> Iterator[int]:
    """Lines that compare something with an engine's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            yield from (node.lineno for side in sides if isinstance(side, ast.Constant) and side.value in NAMES)


def test_no_comparison_with_an_engines_name_is_added() -> None:
    found = {str(path.relative_to(PACKAGE)): list(comparisons(path)) for path in PACKAGE.rglob("*.py")}
    more = {name: lines for name, lines in found.items() if len(lines) > STILL[name]}
    assert more == {}, "ask the engine (qserve.planner.engine), or the object that it launches"


def test_the_planner_and_the_core_name_no_engine_outside_of_their_folders() -> None:
    for name in ("make.py", "plan.py", "request.py", "share.py", "term.py", "setup.py", "outcome.py", "ways.py"):
        literals = {
            node.value
            for node in ast.walk(ast.parse((PACKAGE / "planner" / name).read_text()))
            if isinstance(node, ast.Constant)
        }
        assert not literals & set(NAMES), name
