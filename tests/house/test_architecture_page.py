"""docs/architecture.md and the pages it lists are true: every path and every name in them exists.

Of all other pages the names (`file.py: name`) and what lies below a folder of the repository.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.house.sources import tree_of

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "architecture.md"
TRACES = sorted((ROOT / "docs" / "architecture").glob("*.md"))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
PAGE_BYTES = 10_000  # a page that is read at one sitting


def quoted_in(pages, pattern):
    """Each match of the pattern within single backquotes, with the first page that has it."""
    found = {}
    for page in pages:
        for text in re.findall(r"`([^`\n]+)`", page.read_text().replace("```", "")):
            if re.fullmatch(pattern, text):
                found.setdefault(text, str(page.relative_to(ROOT)))
    return sorted(found.items())


PATHS = [
    (text, page) for text, page in quoted_in([INDEX, *TRACES], r"[\w./-]+(\.\w+|/)") if "/" in text or ".py" in text
]
NAMES = quoted_in(PAGES, r"(?!vllm/)[\w./-]+\.py: [\w.]+")  # a page may name what is in vLLM
TOP_FOLDERS = ("configs/", "docs/", "tests/", "scripts/", "bench/", "evals/")
BELOW_A_FOLDER = re.compile(r"(?<![\w./~-])(?:qserve|tests|scripts|bench|configs|demo|server)/[\w./*-]*\w")


def resolve(path):
    # Of what both have (bench/), the package's own is written with qserve/ in front.
    below_root = path.startswith((*TOP_FOLDERS, "qserve/")) or path == "pyproject.toml"
    return (ROOT if below_root else ROOT / "qserve") / path


def defined_names(node, prefix=""):
    """Functions, classes, methods and module-level constants, dotted."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from defined_names(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign):
            targets = child.targets if isinstance(child, ast.Assign) else [child.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))


def test_the_page_quotes_enough_to_be_worth_checking():
    assert len(PATHS) > 30
    assert len(NAMES) > 50


def test_every_path_exists():
    routes = ("/health", "/openapi.json", "/ready", "/report", "/metrics")
    missing = [f"{page} names {path}" for path, page in PATHS if path not in routes and not resolve(path).exists()]
    assert not missing, "what is not there"


def test_every_path_below_a_folder_of_the_repository_exists():
    found = {(page, path) for page in PAGES for path in BELOW_A_FOLDER.findall(page.read_text())}
    assert len(found) > 150
    missing = [f"{page.relative_to(ROOT)} names {path}" for page, path in sorted(found) if not [*ROOT.glob(path)]]
    assert not missing, "what is not there"


def test_every_name_exists():
    named = [(*quoted.split(": "), page) for quoted, page in NAMES]
    files = {path for path, _, _ in named}
    defined = {path: set(defined_names(tree_of(resolve(path)))) if resolve(path).exists() else set() for path in files}
    missing = [f"{page} names {path}: {name}" for path, name, page in named if name not in defined[path]]
    assert not missing, "what the file does not define"


def test_every_package_has_its_line():
    packages = {path.parent.name for path in (ROOT / "qserve").glob("*/__init__.py")}
    table = set(re.findall(r"^\| .*", INDEX.read_text(), re.MULTILINE))
    named = set(re.findall(r"`(\w+)/`", "\n".join(table)))
    assert packages <= named, f"docs/architecture.md has no line for {packages - named}"


def test_every_folder_is_named():
    """Modules are listed by scripts/modules.py; a folder that no page names is one that nobody finds."""
    pages = "\n".join(page.read_text() for page in [INDEX, *TRACES])
    folders = [path.parent.relative_to(ROOT / "qserve") for path in sorted((ROOT / "qserve").rglob("__init__.py"))]
    missing = [str(one) for one in folders if one.parts and not re.search(rf"(?<![\w/]){one}/", pages)]
    assert not missing, f"no page of docs/architecture names {missing}"


def test_every_module_says_what_it_is():
    unsaid = [str(path) for path in (ROOT / "qserve").rglob("*.py") if not ast.get_docstring(tree_of(path))]
    assert not unsaid, "scripts/modules.py would list these without a sentence"


@pytest.mark.parametrize("page", [INDEX, *TRACES], ids=lambda page: page.stem)
def test_a_page_is_short(page):
    assert len(page.read_bytes()) <= PAGE_BYTES


def test_the_index_lists_every_trace():
    listed = set(re.findall(r"\(architecture/(\w+\.md)\)", INDEX.read_text()))
    assert listed == {page.name for page in TRACES}
