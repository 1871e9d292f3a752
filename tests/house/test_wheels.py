"""The wheels, in environments that hold what they declare and nothing else: light without torch, whole with the others.

An environment is a venv without pip; what a wheel declares is linked into it from the packages of this one, so that no
network is needed and nothing undeclared can be imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from qserve.core import facts

ROOT = Path(__file__).parents[2]
SITE = Path(sysconfig.get_paths()["purelib"])
DEMO = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
LARGEST_BYTES = 1_500_000  # code and tables; what serves has a wheel of its own, and so have the models (10 MB)
HEAVY = {"torch", "transformers", "accelerate", "tokenizers", "numpy", "huggingface-hub", "starlette", "uvicorn"}


def build(folder, out):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(out)]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("core"))


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return build(ROOT / "server", tmp_path_factory.mktemp("server"))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return build(ROOT / "demo", tmp_path_factory.mktemp("models"))


def names_of(wheel):
    return set(zipfile.ZipFile(wheel).namelist())


def declared(wheel):
    """Names of what the wheel needs without extras, and of what that needs."""
    found, waiting = set(), requirement_of(wheel)
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        waiting += distribution(name).requires or []
    return found


def requirement_of(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(metadata).decode().splitlines()
    return [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-Dist: ")]


def linked(packages, site):
    for name in packages:
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top != ".." and top != "__pycache__" and not (site / top).exists() and (SITE / top).exists():
                (site / top).symlink_to(SITE / top)


@pytest.fixture(scope="module")
def bare(core, tmp_path_factory):
    """A Python that has the light wheel and what it declares."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    try:
        linked(declared(core), site)
    except PackageNotFoundError as error:
        pytest.skip(f"{error} is not installed here")
    zipfile.ZipFile(core).extractall(site)
    return folder / "bin" / "python", site


def called(bare, *arguments, code=None):
    python, site = bare
    environment = {"PATH": os.environ["PATH"], "HOME": str(site.parent), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-I", *(["-c", code] if code else ["-m", "qserve", *arguments])]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=site.parent)


def test_the_core_is_light(core):
    assert core.name.startswith("qserve_llm-")
    assert core.stat().st_size < LARGEST_BYTES
    assert len(declared(core)) <= 14 and not declared(core) & HEAVY


def test_the_core_holds_its_tables_and_no_model(core):
    names = names_of(core)
    assert {f"qserve/_configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")} <= names
    assert "qserve/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "bench/", "scripts/", "demo/"))]
    assert not [name for name in names if name.endswith(".safetensors")]
    assert facts.load("gpus")


def test_core_and_server_are_the_whole_of_qserve_and_share_no_file(core, server):
    light, serving = (
        {name for name in names_of(one) if name.endswith(".py") and name.split("/")[1] not in ("_configs", "_evals")}
        for one in (core, server)
    )
    assert not light & serving
    left_out = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "exclude"
    ]
    trains = {name for pattern in left_out if "demo" in pattern for name in map(str, ROOT.glob(pattern))}
    whole = {str(path.relative_to(ROOT)) for path in (ROOT / "qserve").rglob("*.py") if str(path) not in trains}
    assert light | serving == whole
    assert requirement_of(server) == [f"qserve-llm[serve]=={core.name.split('-')[1]}"]


def test_a_release_folder_is_enough_for_pip(core, server, models, tmp_path):
    """By name and without an index: the server's wheel finds the core of the same version beside it."""
    release = tmp_path / "release"
    release.mkdir()
    for wheel in (core, server, models):
        (release / wheel.name).symlink_to(wheel)
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--find-links",
        release,
        "--target",
        tmp_path / "to",
    ]
    names = ["qserve-llm", "qserve-llm-server", "qserve-llm-demo"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        [*command, "--no-deps", *names], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to" / "qserve" / "gateway").is_dir() and (tmp_path / "to" / "qserve_demo").is_dir()


def test_the_models_have_a_wheel_of_their_own(models):
    names = names_of(models)
    assert {f"qserve_demo/{kind}/{name}" for kind in ("chat", "reward") for name in DEMO} <= names


# In one process: what is not there is missing for each.
LIGHT = (
    ("plan", "train", "--method", "lora", "--model", "Qwen/Qwen3-8B", "--gpu", "rtx-4090"),
    ("deploy", "k8s", "--config", "qwen2.5-7b-with-reward-1x24gb"),
    ("models", "--json"),
    ("bench", "--help"),
    ("report", "--help"),
    ("eval", "--help"),
    ("up", "--help"),
    ("chat", "--help"),
    ("run", "--help"),
    ("completion", "bash"),
)


def test_the_light_commands_run(bare):
    code = (
        "from click.testing import CliRunner\n"
        "from qserve.cli.main import cli\n"
        f"for words in {LIGHT!r}:\n"
        "    done = CliRunner().invoke(cli, words)\n"
        "    assert done.exit_code == 0 and done.output, (words, done.output, done.exception)"
    )
    done = called(bare, code=code)
    assert done.returncode == 0, done.stderr
    done = called(bare, "plan", "--model", "Qwen/Qwen32B", "--quant", "4bit", "--gpu", "rtx-4090")
    assert done.returncode == 0 and done.stdout, done.stderr


def test_doctor_says_what_is_missing(bare):
    done = called(bare, "doctor")
    assert done.returncode == 1 and not done.stderr
    assert "pip install" in done.stdout and "torch" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--model", "demo"), "`qserve up` needs the part of qserve that serves"),
        (("score", "pairs.jsonl", "--reward", "demo"), "`qserve score` needs the part of qserve that serves"),
        (("eval", "--tasks", "gsm8k"), "`qserve eval` needs the package lm-eval"),
        (("run", "qwen3-8b"), "`qserve run` needs the part of qserve that serves"),
        (("chat", "--url", "http://127.0.0.1:9"), "no server answers at http://127.0.0.1:9"),
        (("plan", "--model", "demo"), "the demo models are not installed"),
        (("bench", "--url", "http://127.0.0.1:9"), "http://127.0.0.1:9"),
        (("runs", "show", "1"), "run"),
    ],
    ids=lambda value: " ".join(value[:1]) if isinstance(value, tuple) else "",
)
def test_what_is_missing_is_one_line(bare, arguments, words):
    (bare[1].parent / "pairs.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    done = called(bare, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("qserve: ") and done.stderr.count("\n") == 1
    assert words in done.stderr


def test_the_library_plans_without_torch(bare):
    code = (
        "import sys, qserve\n"
        "plan = qserve.plan('Qwen/Qwen3-32B', gpu='rtx-4090', quant='4bit')\n"
        "print(plan.fits, 'torch' in sys.modules, plan._repr_html_()[:4])"
    )
    done = called(bare, code=code)
    assert done.stdout.split() == ["True", "False", "<div"], done.stderr


def test_with_the_models_the_demo_is_planned(bare, models, tmp_path):
    zipfile.ZipFile(models).extractall(bare[1])
    done = called(bare, "plan", "--model", "demo", "--gpu", "rtx-4090")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [("up", "--model", "demo"), ("score", "pairs.jsonl", "--reward", "demo")])
def test_with_the_server_alone_its_packages_are_named(bare, models, server, arguments):
    for wheel in (models, server):
        zipfile.ZipFile(wheel).extractall(bare[1])
    (bare[1].parent / "pairs.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    done = called(bare, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"qserve: `qserve {arguments[0]}` needs the packages "), done.stderr
    assert "accelerate" in done.stderr and done.stderr.count("\n") == 1
