"""What the package's structure is measured by, before and after a change of it.

python scripts/structure.py table [FOLDER]    a Markdown table; FOLDER: another checkout's, to compare with
python scripts/structure.py http [FOLDER]     the modules that import a library for HTTP or httptools
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
HTTP_LIBRARIES = ("urllib.request", "urllib.error", "http.client", "aiohttp", "httpx", "httptools")
ENGINES = ("vllm", "transformers")


def imported_by(tree: ast.Module) -> Iterator[str]:
    """The dotted names that a module imports, at its top or later; of `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def speaks_http(tree: ast.Module) -> bool:
    """Whether a module imports one of `HTTP_LIBRARIES`."""
    return any(
        name == library or name.startswith(f"{library}.") for name in imported_by(tree) for library in HTTP_LIBRARIES
    )


def homes_of(engine: str, modules: Sequence[Path]) -> set[str]:
    """Folders with modules that carry the engine's name: the highest folder of that name, or the module's own."""
    homes = set()
    for module in modules:
        parts = module.with_suffix("").parts
        at = next((index for index, part in enumerate(parts) if engine in part), None)
        if at is not None:
            homes.add("/".join(parts[: at + 1] if at < len(parts) - 1 else parts[:at]))
    return homes


def spread(values: Sequence[int]) -> str:
    """Median, 90th percentile and largest."""
    return f"{statistics.median(values):.0f} / {statistics.quantiles(values, n=10)[-1]:.0f} / {max(values)}"


def rows(package: Path) -> Iterator[tuple[str, object]]:
    """The measures of a package and their values."""
    paths = sorted(package.rglob("*.py"))
    texts = {path: path.read_text() for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items()}
    lines = {path: text.count("\n") for path, text in texts.items()}
    functions = [
        node.end_lineno - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    modules = [path.relative_to(package) for path in paths if path.name != "__init__.py"]
    folders = Counter(module.parent for module in modules)
    total = sum(lines.values())
    yield "files", len(paths)
    yield "folders", len({path.parent for path in paths})
    yield "lines", f"{total:,}"
    yield "files per 1,000 lines", f"{1000 * len(paths) / total:.1f}"
    yield "lines a file, median / p90 / max", spread(list(lines.values()))
    yield "functions", f"{len(functions):,}"
    yield "lines a function, median / p90 / max", spread(functions)
    yield "functions over 40 lines", sum(size > 40 for size in functions)
    yield "import lines", f"{100 * imports / total:.1f} %"
    yield "modules under 40 lines", sum(lines[package / module] < 40 for module in modules)
    yield "largest folder, modules", max(folders.values())
    yield "folders of 19 modules or more", sum(number >= 19 for number in folders.values())
    yield "folders of 4 modules or fewer", sum(number <= 4 for number in folders.values())
    yield "modules that speak HTTP", sum(map(speaks_http, trees.values()))
    for engine in ENGINES:
        yield f"homes of {engine}", len(homes_of(engine, modules))


def main() -> None:
    """Print one measure. Exit status 1 for one that is not known."""
    package = (Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT) / "qserve"
    if sys.argv[1:2] == ["table"]:
        print("| measure | value |\n|---|---|")
        for name, value in rows(package):
            print(f"| {name} | {value} |")
    elif sys.argv[1:2] == ["http"]:
        found = [path for path in sorted(package.rglob("*.py")) if speaks_http(ast.parse(path.read_text()))]
        print(*(path.relative_to(package.parent) for path in found), sep="\n")
        print(f"{len(found)} modules speak HTTP by a library of their own")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
