"""--revision: each command that loads a model takes it, and what is planned of it is what is written down."""

from __future__ import annotations

import json
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner, Result

import qserve
from qserve.cli.main import cli
from qserve.cli.options.deployment import load
from qserve.core import facts
from qserve.core.hardware import Hardware
from qserve.demo import reward_model_path
from qserve.errors import DoesNotFit, QserveError
from qserve.reward.find import find_reward
from qserve.reward.settings import RewardSettings
from qserve.units import GIB

OLD, NEW = "a" * 40, "b" * 40
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
HEADER = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [32, 8], "data_offsets": [0, 512]}})
FILE = struct.pack("<Q", len(HEADER)) + HEADER.encode() + bytes(512)


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """me/mine, of which main is NEW and v1.0 is OLD, and me/other at one commit."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("QSERVE_STATE_DIR", str(tmp_path / "state"))
    for name, refs in {"me--mine": {"main": NEW, "v1.0": OLD}, "me--other": {"main": OLD}}.items():
        repo = tmp_path / "hub" / f"models--{name}"
        for ref, commit in refs.items():
            folder = repo / "snapshots" / commit
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(json.dumps(CONFIG))
            (folder / "model.safetensors").write_bytes(FILE)
            (repo / "refs").mkdir(exist_ok=True)
            (repo / "refs" / ref).write_text(commit)


def called(line: str) -> Result:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(cli, shlex.split(line))
    assert done.exit_code == 0, done.output
    return done


def commands(command: click.Command, path: str = "qserve") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from commands(found, f"{path} {name}")


def test_each_command_that_loads_a_model_takes_it() -> None:
    found: dict[str, set[str]] = {}
    for path, command in commands(cli):
        names = {str(one.name) for one in command.params}
        if "model_argument" in names:
            assert ("revision" in names) is (path != "qserve chat"), path
            found.setdefault("model", set()).add(path.removeprefix("qserve "))
        if "reward" in names:
            assert "reward_revision" in names, path
            found.setdefault("reward", set()).add(path.removeprefix("qserve "))
    assert {"plan", "plan train", "up", "run", "deploy", "compare", "eval", "train"} <= found["model"]
    assert {"plan", "up", "deploy", "compare", "score", "eval-reward", "reward check"} <= found["reward"]


@pytest.mark.parametrize(
    ("words", "commit"),
    [
        ("me/mine", NEW),
        ("me/mine --revision v1.0", OLD),
        ("--model me/mine@v1.0", OLD),
        (f"me/mine --revision {NEW}", NEW),
        ("--revision v1.0 mine", OLD),
    ],
)
def test_the_plan_says_the_commit(words: str, commit: str) -> None:
    plan = json.loads(called(f"plan {words} --gpu none --json").stdout)
    assert plan["model"]["id"] == "me/mine" and plan["model"]["revision"] == commit
    text = called(f"plan {words} --gpu none").stdout
    assert f"\n  revision {commit}\n" in text
    assert qserve.plan("me/mine", gpu="none", revision=commit).model.revision == commit


def test_a_plan_of_a_table_has_none() -> None:
    done = called("plan Qwen/Qwen3-0.6B --gpu none --json")
    plan = json.loads(done.stdout)
    assert "revision" not in plan["model"] and any("pin no revision" in note for note in plan["notes"])


def test_the_next_command_serves_the_same() -> None:
    last = called("plan me/mine --revision v1.0 --gpu none").stdout.splitlines()[-1].strip()
    assert last == "qserve up --model me/mine@v1.0 --gpu none"
    library = qserve.plan("me/mine", gpu="none", revision="v1.0").next_command
    assert library == "qserve up --model me/mine --revision v1.0 --gpu none"


@pytest.mark.parametrize(
    ("words", "commit"), [("me/mine", NEW), ("mine", NEW), ("me/mine --revision v1.0", OLD), ("mine@v1.0", OLD)]
)
@pytest.mark.parametrize("target", ["compose", "k8s", "systemd --user serve"])
def test_deploy_writes_the_commit(target: str, words: str, commit: str) -> None:
    text = called(f"deploy {target} {words} --gpu none --max-model-len 64").stdout
    assert f"@{commit}" in text and f"me/mine at revision {commit}" in text
    assert f"--model=me/mine@{commit}" in text, "a short name of this machine's cache means nothing elsewhere"


def test_deploy_of_a_table_of_the_demo_and_of_a_folder_pins_nothing(tmp_path: Path) -> None:
    for model, told in (("demo", ""), ("Qwen/Qwen3-0.6B", " at no fixed revision")):
        done = called(f"deploy compose {model} --gpu none")
        assert "@" not in done.stdout.partition("services:")[2]
        assert f"{model}{told}, " in done.stdout and f"{model}{told}, " in done.stderr
    folder = tmp_path / "hub" / "models--me--mine" / "snapshots" / OLD
    text = called(f"deploy systemd {folder} --user serve --gpu none").stdout
    assert f"--model={folder} " in text and f"at revision {OLD}" in text


def test_deploy_says_that_a_quantized_sibling_is_not_pinned(large: str, monkeypatch: pytest.MonkeyPatch) -> None:
    siblings = {large: {"awq": "me/Large-8B-AWQ"}}
    rows = facts.load
    monkeypatch.setattr(facts, "load", lambda name: siblings if name == "siblings" else rows(name))
    for words, named in (("--revision old", f"{large}@old"), ("", large)):
        done = called(f"deploy compose {large} {words} --gpu rtx-4090 --quant awq --engine vllm")
        assert f'--model={named}"' in done.stdout or f"--model={named}\n" in done.stdout
        assert f"{large} as me/Large-8B-AWQ at no fixed revision, vllm" in done.stdout


def settings(tmp_path: Path, **values: Any) -> Path:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(values))
    return file


def test_a_file_of_settings_has_it_and_a_flag_wins(tmp_path: Path) -> None:
    file = settings(tmp_path, model="me/mine", revision="v1.0", gpu="none")
    assert load(str(file)).options["revision"] == "v1.0"

    def planned(more: str) -> dict[str, Any]:
        model: dict[str, Any] = json.loads(called(f"plan --config {file} --json {more}").stdout)["model"]
        return model

    assert planned("")["revision"] == OLD
    assert planned("--revision main")["revision"] == NEW
    for same in ("me/mine", "mine", "--model ME/Mine"):
        assert planned(same)["revision"] == OLD, "it is the file's model, however it is named"
    assert planned("me/mine@main")["revision"] == NEW and planned("mine --revision main")["revision"] == NEW
    other = planned("me/other")
    assert (other["id"], other["revision"]) == ("me/other", OLD), "the file's revision is of the file's model"
    for words in ("", "mine"):
        done = called(f"deploy compose {words} --config {file} --max-model-len 64")
        assert f"--model=me/mine@{OLD}" in done.stdout


def test_a_revision_behind_the_model_of_a_file_is_as_good_and_one_without_a_model_is_of_any(tmp_path: Path) -> None:
    file = settings(tmp_path, model="me/mine@v1.0", reward="me/mine@v1.0", gpu="none")
    for words, found in {
        "": (OLD, OLD),
        "mine": (OLD, OLD),
        "me/mine --reward me/mine": (OLD, OLD),
        "--revision main": (NEW, OLD),
        "--reward-revision main": (OLD, NEW),
        "me/mine@main --reward me/mine@main": (NEW, NEW),
    }.items():
        plan = json.loads(called(f"plan --config {file} --json {words}").stdout)
        assert (plan["model"]["revision"], plan["reward"]["model"]["revision"]) == found, words
    alone = settings(tmp_path, revision="v1.0", gpu="none")
    assert json.loads(called(f"plan me/mine --config {alone} --json").stdout)["model"]["revision"] == OLD
    with pytest.raises(QserveError, match="demo comes with qserve and has no revisions"):
        cli.main(["plan", "demo", "--config", str(alone)], standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("plan me/mine --revision ../../x", "--revision '../../x' is not a revision; it takes a branch"),
        ("plan me/mine --revision 'a b'", "is not a revision"),
        ("up me/mine --revision v9", f"the cache has v1.0 ({OLD}), main ({NEW})"),
        ("plan demo --revision v1", "demo comes with qserve and has no revisions"),
        ("plan --reward demo --revision v1", "--revision v1: no --model is named"),
        ("plan me/mine --reward-revision v1", "--reward-revision v1: no --reward is named"),
        ("plan me/mine@v1 --revision v2", "name two revisions"),
        ("plan --reward me/mine --reward-revision v9 --gpu none", f"the cache has v1.0 ({OLD}), main ({NEW})"),
        ("score x.jsonl --reward-revision v1", "--reward-revision v1: no --reward is named"),
        ("eval-reward x.jsonl --reward-revision v1", "--reward-revision v1: no --reward is named"),
        ("reward check --reward-revision v1", "--reward-revision v1: no --reward is named"),
        ("score x.jsonl --reward demo --reward-revision v1", "--reward-revision v1: demo comes with qserve"),
        ("eval --revision v1 --suite offline", "--revision v1: no --model is named"),
        ("plan Qwen/Qwen3-8B --revision v1", "leave the revision out to plan from the bundled dimensions"),
        ("train lora demo --data x.jsonl --revision v1", "demo comes with qserve"),
        ("plan train me/mine --method lora --revision v9", "at revision 'v9' is not in the local cache"),
    ],
)
def test_what_can_not_be_is_refused(line: str, told: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(line))
    assert isinstance(done.exception, QserveError), done.output
    assert told in str(done.exception)


def test_a_run_that_trains_says_what_it_was_read_at() -> None:
    text = called("plan train me/mine --method lora --revision v1.0 --gpu rtx-4090 --max-length 64").stdout
    assert f"me/mine is read at revision {OLD}" in " ".join(text.split())


def test_a_reward_model_has_a_revision_of_its_own() -> None:
    line = "plan me/mine --revision v1.0 --reward me/other --reward-revision main --gpu none --json"
    plan = json.loads(called(line).stdout)
    assert plan["model"]["revision"] == OLD and plan["reward"]["model"]["revision"] == OLD
    assert plan["reward"]["model"]["id"] == "me/other"


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """me/Large-8B whose weights a small card does not hold, nor this machine's RAM; old is another commit than main."""
    here = Hardware((), 16 * GIB, 12 * GIB, 16, disk_free_bytes=500 * GIB)
    monkeypatch.setattr("qserve.detect.detect", lambda **_: here)
    big = {**CONFIG, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
    big |= {"head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936}
    repo = tmp_path / "hub" / "models--me--Large-8B"
    for ref, commit in (("main", NEW), ("old", OLD)):
        folder = repo / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({**big, "max_position_embeddings": 40960}))
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return "me/Large-8B"


@pytest.mark.parametrize(
    ("words", "named"), [("", ""), ("--revision old", "@old"), (f"--revision {OLD[:9]}", f"@{OLD[:9]}")]
)
@pytest.mark.parametrize(
    "refused",
    [
        "--gpu rtx-4060 --quant bf16 --engine vllm --kv-cache-memory-bytes 9GiB",
        "--gpu rtx-4060 --quant bf16 --max-model-len 8192 --max-num-seqs 64 --max-num-batched-tokens 4096",
        "--gpu rtx-4090 --quant bf16 --gpu-memory-utilization 0.4 --prompt-logprobs",
        "--gpu rtx-4060 --quant bf16 --engine transformers",
        "--gpu none --quant bf16 --max-model-len 20480 --max-num-seqs 4096",
    ],
)
def test_every_way_out_is_of_the_revision_that_was_asked_for(large: str, refused: str, words: str, named: str) -> None:
    done = CliRunner().invoke(cli, shlex.split(f"plan {large} {words} {refused} --json"))
    assert done.exit_code == 3, done.output
    offered = [one["command"] for one in json.loads(done.stdout)["suggestions"]]
    assert offered
    for command in offered:
        assert f"--model {large}{named} " in command
    again = json.loads(called(f"{offered[0].removeprefix('qserve ')} --json").stdout)
    assert again["model"]["revision"] == (OLD if words else NEW)


def test_a_reward_model_keeps_the_revision_in_its_ways_out(large: str, tmp_path: Path) -> None:
    line = f"plan --reward {large} --reward-revision old --reward-quant bf16 --gpu rtx-4060 --json"
    done = CliRunner().invoke(cli, shlex.split(line))
    told = str(done.exception)
    assert isinstance(done.exception, DoesNotFit) and "qserve plan --model" in told, done.output
    assert told.count("--model ") == told.count(f"--model {large}@old ")
    snapshots = tmp_path / "hub" / "models--me--judge" / "snapshots"
    snapshots.mkdir(parents=True)
    (snapshots / OLD).symlink_to(reward_model_path())
    for named, name in ((f"me/judge@{OLD}", f"me/judge@{OLD}"), ("me/judge", "me/judge")):
        assert find_reward(named, RewardSettings()).planned().name == name
