"""The pages for people: links lead somewhere, commands and flags exist, make targets exist, code compiles."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from qserve import errors
from qserve.cli.main import cli
from qserve.hub import resolve
from qserve.planner import PlanRequest, make_plan
from qserve.service.machine import hardware_of
from qserve.supervisor.sanity.check import Sanity
from qserve.supervisor.screen import ReadyWorker, ready_rows
from qserve.supervisor.screen.console import row_lines

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("evals/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
# Everything that looks like a call of qserve: in a block, at the start of a line, after a variable.
CALL = re.compile(r"^(?:\$ |    )?(?:[A-Z_]+=\S+ )?(qserve (?:[a-z-]|--).*)$", re.MULTILINE)


def calls_of(page):
    blocks = "\n".join(re.findall(r"```(?:bash|console)\n(.*?)```", page.read_text(), re.DOTALL))
    return [re.split(r" #| >", match[1])[0].strip() for match in CALL.finditer(blocks)]


CALLS = sorted({call for page in PAGES for call in calls_of(page)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_front_page_of_results_links_to_each_of_them():
    results = ROOT / "docs" / "results"
    pages = {str(page.relative_to(results)) for page in results.glob("**/*.md")} - {"README.md"}
    assert pages == {link for link in LINK.findall((results / "README.md").read_text()) if link in pages}


def test_pages_that_the_code_names_exist():
    sources = [
        path for folder in ("qserve", "scripts", "bench", "server", "demo") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    named = {
        (name, path)
        for path in sources
        for name in re.findall(r"docs/(?:architecture/|results/(?:log/)?)?[\w-]+\.md", path.read_text())
    }
    assert named
    assert not [f"{path.relative_to(ROOT)}: {name}" for name, path in named if not (ROOT / name).exists()]


def test_there_are_calls_to_check():
    assert len(CALLS) >= 4


@pytest.fixture
def quoted_files(tmp_path, monkeypatch):
    """In the folder of the call, the files that pages quote whole: YAML whose first line is `# NAME.yaml`."""
    for page in (ROOT / "docs").glob("*.md"):
        for name, text in re.findall(r"```yaml\n# (\S+\.yaml)\n(.*?)```", page.read_text(), re.DOTALL):
            (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.usefixtures("quoted_files")
def test_every_quoted_call_parses(call):
    arguments = shlex.split(call)[1:]
    command, context = cli, click.Context(cli, info_name="qserve")
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        below = command.get_command(context, arguments[0])
        if below is None and any(one.name == "model_argument" for one in command.params):
            break  # a model, as in `qserve plan MODEL`
        assert below is not None, f"{call}: qserve has no command {arguments[0]!r}"
        command, arguments = below, arguments[1:]
        context = click.Context(command, info_name=command.name)
    if "--help" not in arguments:
        command.parse_args(context, arguments)  # raises for a flag or a value that the command does not know


def test_every_command_opens_its_help_with_an_example():
    def walk(command, path):
        yield command, path
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                yield from walk(below, f"{path} {below.name}")  # `serve` is another name of `up`

    for command, path in walk(cli, "qserve"):
        assert re.search(rf"\x08\n +(?:[A-Z_]+=\S+ )?{path}", command.help or ""), (
            f"the help of {path} shows no example"
        )


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert targets >= {"help", "setup", "up", "test", "check", "bench", "gpu"}
    for page in PAGES:
        in_code = re.findall(r"`[^`]*`|^```.*?^```", page.read_text(), re.DOTALL | re.MULTILINE)
        named = {name for code in in_code for name in re.findall(r"(?:^|`)make ([a-z]+)", code, re.MULTILINE)}
        assert named <= targets, f"{page.name} names make {named - targets}"


def test_make_help_lists_every_target_with_a_sentence():
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    for target in phony:
        assert re.search(rf"^make {target} +\S", listed, re.MULTILINE)


def test_python_blocks_compile():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")


def test_the_ready_screen_has_the_rows_that_the_readme_shows():
    screen = README.partition("qserve is ready after")[2].partition("```")[0]
    shown = [line.split()[0] for line in screen.splitlines()[1:] if line[0] != " "]
    memory = {"weights_bytes": 0, "kv_cache_bytes": 0, "kv_cache_tokens": 0, "resident_bytes": 0}
    plan = make_plan(resolve("demo"), hardware_of("none"), PlanRequest())
    demo = ReadyWorker("chat", ("demo",), plan, memory, {}, sanity=Sanity(1280, {"English": 3.0}))
    reward = ReadyWorker("reward", ("demo-reward",), plan, memory, {})
    rows = ready_rows("http://127.0.0.1:8000", [demo, reward], has_key=False, has_ui=True, logs=Path("logs"))
    assert [name for name, _ in rows if name] == shown
    assert "\n".join(row_lines("Try", dict(rows)["Try"], 80)) in screen


def test_exit_statuses_are_those_of_the_exceptions():
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("## Exit statuses")[2].partition("\n## ")[0]
    documented = {int(number) for number in re.findall(r"^\| (\d) ", table, re.MULTILINE)}
    kinds = [getattr(errors, name) for name in errors.__all__]
    raised = {kind.exit_status for kind in kinds if issubclass(kind, errors.QserveError)}
    assert documented == raised | {0}
