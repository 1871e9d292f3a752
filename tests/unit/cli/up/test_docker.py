"""Dockerfile and compose.yaml, as far as that takes seconds: scripts/image_check.sh builds and runs the image."""

from __future__ import annotations

import fnmatch
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from qserve.cli.main import cli
from qserve.cli.up.command import command as up
from qserve.gateway.routes import ROUTES

ROOT = Path(__file__).parents[4]
BIN = Path(sys.executable).parent
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["qserve"]
PATHS = {route.path for route in ROUTES if route.method == "GET"}
DEFAULTS = {option.name: option.default for option in up.params}


@cache
def steps():
    """[(instruction, value)] of the Dockerfile, in order, line ends joined."""
    parsed = DockerfileParser(fileobj=io.BytesIO((ROOT / "Dockerfile").read_bytes())).structure
    return [(item["instruction"], item["value"]) for item in parsed if item["instruction"] != "COMMENT"]


def value_of(instruction):
    return [value for name, value in steps() if name == instruction][-1]


def copies(until=None):
    """[(source, target)] of the COPY lines, up to the first RUN that holds `until`."""
    found = []
    for name, value in steps():
        if name == "RUN" and until and until in value:
            break
        if name == "COPY":
            *sources, target = shlex.split(value)
            found += [(source, target) for source in sources]
    return found


def build_context(folder, until=None):
    """What `folder` holds after those COPY lines, /app being the folder."""
    for source, target in copies(until):
        place = folder / target / Path(source).name if target.endswith("/") else folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            shutil.copy2(ROOT / source, place)


def is_ignored(path):
    """.dockerignore as Docker reads it: the last pattern that matches the path or a folder above it decides."""
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        pattern = line.lstrip("!").removeprefix("**/")
        parts = Path(path).parts
        above = ["/".join(parts[: end + 1]) for end in range(len(parts))]
        if line and not line.startswith("#") and any(fnmatch.fnmatch(part, pattern) for part in above):
            ignored = not line.startswith("!")
    return ignored


def test_the_linter_finds_nothing():
    linter = BIN / "hadolint"
    if not linter.exists():
        pytest.skip("hadolint comes for x86-64 only")
    done = subprocess.run([linter, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_is_tracked_and_is_not_ignored():
    assert {source for source, _ in copies()} >= {"qserve", "configs", "pyproject.toml", "constraints.txt"}
    for source, _ in copies():
        assert (ROOT / source).exists()
        assert not is_ignored(source), f".dockerignore leaves {source} out"
        listed = subprocess.run(["git", "ls-files", source], cwd=ROOT, capture_output=True, text=True, check=False)
        assert listed.returncode or listed.stdout, f"{source} is not in the repository"


@pytest.mark.parametrize(
    "path", [".git/config", ".venv/bin/python", "qserve.env", "models/a.safetensors", "tests/a.py"]
)
def test_what_is_not_copied_is_not_sent_to_the_engine_either(path):
    assert is_ignored(path)


def test_the_shell_steps_are_shell():
    assert value_of("SHELL") == '["/bin/bash", "-o", "pipefail", "-c"]'
    for name, value in steps():
        if name == "RUN":
            script = re.sub(r"^--mount=\S+\s+", "", value)
            subprocess.run(["bash", "-n", "-c", script], check=True)


def test_the_set_up_has_the_files_that_it_reads(tmp_path):
    """As far as finding a Python in a folder that holds what the layer above it holds, and nothing else."""
    build_context(tmp_path, until="setup.sh")
    old = tmp_path / "python3.9"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2\nexit 1\n')
    old.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": str(old)}
    done = subprocess.run(
        ["bash", "scripts/setup.sh", "cuda"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "needs Python 3.11" in done.stderr
    assert "No such file" not in done.stderr


def test_the_set_up_needs_no_code_that_is_copied_later_and_installs_nothing_for_tests(tmp_path):
    """To its end, with a Python whose pip installs nothing."""
    build_context(tmp_path, until="setup.sh")
    python = tmp_path / "python3.12"
    python.write_text(f"""#!/bin/bash
case "$*" in
    --version) echo Python 3.12.3 ;;
    "-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "#!$PWD/.venv/bin/python" >.venv/bin/pip ;;
    "-c "*) exec {sys.executable} "$@" ;;
    *" --editable "*) echo "${{@: -1}}" >installed ;;
esac
""")
    python.chmod(0o755)
    done = subprocess.run(
        ["bash", "scripts/setup.sh", "cuda"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "setup: done in" in done.stdout
    extras = (tmp_path / "installed").read_text().strip().removeprefix(".[").removesuffix("]").split(",")
    assert {"vllm", "serve", "train", "otel"} <= {*extras} and "dev" not in extras


def test_the_package_can_be_built_before_the_code_is_there(tmp_path):
    build_context(tmp_path, until="setup.sh")
    run = next(value for name, value in steps() if name == "RUN" and "setup.sh" in value)
    before = re.sub(r"^--mount=\S+\s+", "", run).partition("&& PIP_CACHE_DIR")[0]
    subprocess.run(["bash", "-ec", before], cwd=tmp_path, check=True)
    build = "from hatchling.build import build_wheel; print(build_wheel('.'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_copied_is_enough_to_run(tmp_path):
    build_context(tmp_path)
    call = (
        "from qserve.cli.main import cli; cli.main(['plan', '--config', 'demo-cpu', '--json'], standalone_mode=False)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import qserve; print(qserve.__file__); {call}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    where, _, plan = done.stdout.partition("\n")
    assert Path(where).is_relative_to(tmp_path)
    assert json.loads(plan)["fits"]


def test_the_accelerator_of_the_set_up_is_one_that_it_knows():
    run = next(value for name, value in steps() if name == "RUN" and "setup" in value)
    assert run.endswith('scripts/setup.sh "${ACCELERATOR}"')
    assert ("ARG", "ACCELERATOR=cuda") in steps()
    assert "cpu | cuda)" in (ROOT / "scripts" / "setup.sh").read_text()


@pytest.mark.parametrize(("accelerator", "own"), [("cuda", "cuda-nvcc-13-0"), ("cpu", "libnuma1")])
def test_each_variant_installs_its_own_packages_and_what_both_need(accelerator, own, tmp_path):
    (tmp_path / "apt-get").write_text('#!/bin/sh\necho "$@" >>"$SAID"\n')
    (tmp_path / "apt-get").chmod(0o755)
    script = next(value for name, value in steps() if name == "RUN" and "apt-get" in value)
    said = tmp_path / "said"
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "SAID": str(said),
        "CUDA_VERSION": "13.0.3",
        "ACCELERATOR": accelerator,
    }
    # Without its last step, which empties this machine's lists.
    subprocess.run(["bash", "-ec", script.rpartition("&& rm ")[0]], env=environment, check=True)
    installed = set(said.read_text().split())
    assert {"install", "g++", "python3-venv", own} <= installed
    others = {"cuda": "libnuma1", "cpu": "cuda-nvcc-13-0"}
    assert others[accelerator] not in installed


def test_cuda_is_the_one_of_the_pinned_torch():
    """torch names its CUDA in its wheel's metadata; the Dockerfile says for which torch it was looked up."""
    torch = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    version = next(value for name, value in steps() if name == "ARG").partition("=")[2]
    text = (ROOT / "Dockerfile").read_text()
    assert f"`cuda-toolkit=={version}` in the metadata of torch {torch}" in text
    assert value_of("FROM") == "${BASE_IMAGE}"
    assert ("ARG", "BASE_IMAGE=nvidia/cuda:${CUDA_VERSION}-base-ubuntu24.04") in steps()


def test_the_user_is_not_root_and_owns_the_volume():
    names = [name for name, _ in steps()]
    assert value_of("USER") == "${UID}"
    assert next(value for name, value in steps() if value.startswith("UID=")) == "UID=1000"
    assert names.index("USER") > max(place for place, name in enumerate(names) if name in ("RUN", "COPY"))
    home = value_of("VOLUME")
    assert any(f"--home-dir {home} " in value for name, value in steps() if name == "RUN")
    assert f"state:{home}" in COMPOSE["volumes"]


def test_the_command_is_qserve():
    assert json.loads(value_of("ENTRYPOINT")) == ["qserve"]
    assert json.loads(value_of("CMD")) == ["--help"]
    assert "/app/.venv/bin:" in value_of("ENV")


def health_checks():
    own = json.loads(value_of("HEALTHCHECK").partition("CMD ")[2])
    return {"Dockerfile": own, "compose.yaml": COMPOSE["healthcheck"]["test"][1:]}


@pytest.mark.parametrize("file", ["Dockerfile", "compose.yaml"])
def test_the_health_check_asks_a_route_that_there_is_on_the_port_that_is_open(file):
    url = re.search(r"http://127\.0\.0\.1:(\d+)(/\w+)", health_checks()[file][-1])
    assert url[2] in PATHS
    assert int(url[1]) == DEFAULTS["port"] == int(value_of("EXPOSE"))


@pytest.mark.parametrize(
    ("file", "status", "returncode"),
    [("Dockerfile", 200, 0), ("Dockerfile", 500, 1), ("compose.yaml", 200, 0), ("compose.yaml", 503, 1)],
)
def test_the_health_check_tells_yes_from_no(file, status, returncode):
    seen = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        code = health_checks()[file][-1].replace(":8000/", f":{server.server_port}/")
        environment = {**os.environ, "QSERVE_API_KEY": "first second"}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
        thread.join()
    assert done.returncode == returncode
    assert seen == [None if file == "Dockerfile" else "Bearer first"]


def test_compose_is_what_the_specification_allows():
    checker = [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", ROOT / "compose.yaml"]
    done = subprocess.run(checker, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_compose_starts_what_the_command_line_knows():
    name, *arguments = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in COMPOSE["command"]]
    command = cli.get_command(click.Context(cli), name)
    values = command.make_context(name, [*arguments, "--api-key", "secret"]).params
    assert values["host"] == "0.0.0.0"
    assert COMPOSE["env_file"] == "qserve.env"
    assert COMPOSE["ports"][0].endswith(f":{DEFAULTS['port']}")


def test_compose_gives_a_service_time_to_drain_room_to_share_and_a_card():
    assert int(COMPOSE["stop_grace_period"].removesuffix("s")) > DEFAULTS["drain_timeout"]
    assert COMPOSE["shm_size"]
    assert COMPOSE["init"] is True
    assert COMPOSE["restart"] == "unless-stopped"
    (device,) = COMPOSE["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_the_key_never_enters_the_repository():
    ignored = subprocess.run(["git", "check-ignore", "qserve.env"], cwd=ROOT, capture_output=True, check=False)
    assert ignored.returncode != 1


@pytest.mark.parametrize("file", ["Dockerfile", "docs/deployments.md"])
def test_the_docker_run_that_is_shown_is_a_call_of_qserve(file):
    text = re.sub(r"\\\n#?\s+", " ", (ROOT / file).read_text())
    (shown,) = re.findall(r"docker run --gpus all .* (qserve up .*)$", text, re.MULTILINE)
    up.make_context("up", [*shlex.split(shown)[2:], "--api-key", "secret"])
