"""`qserve pull` and `qserve models --local`: what they print, beside a hub on loopback that the real client asks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from qserve.demo import chat_model_path, reward_model_path
from qserve.runs import RunStore
from qserve.state_folder import state_folder
from tests.terminal import Terminal
from tests.tiny.hub.loopback import COMMIT, OLDER, Hub, loopback_hub
from tests.unit.hub.test_folder import write_safetensors
from tests.unit.runs.kept import until, writer

_CONTROL = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")
FILES = {file.name: file.read_bytes() for file in Path(chat_model_path()).iterdir() if file.is_file()}

REWARD = {file.name: file.read_bytes() for file in Path(reward_model_path()).iterdir() if file.is_file()}


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with loopback_hub({**FILES, "consolidated.safetensors": bytes(3 << 20)}) as one:
        yield one


def qserve(hub: Hub, cache: Path, *arguments: str) -> tuple[int, str, str]:
    """Its exit status, what it printed, and what it said beside that."""
    environment = {key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "COLUMNS": "80"}
    command = [sys.executable, "-m", "qserve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@contextmanager
def running(model: str, commit: str, folder: Path) -> Iterator[tuple[str, str]]:
    """The flags that name a store in which this process serves the model."""
    run = writer(store := state_folder(folder))
    run.plan("chat", (model,), {"model": {"id": model, "revision": commit}, "quant": {"checkpoint": model}})
    run.listens_at("http://127.0.0.1:8000")
    until(lambda: any(one.url for one in RunStore.open(store).runs()))
    yield "--state-dir", str(folder)
    run.close(0)


def test_a_model_is_planned_fetched_listed_and_deleted(hub: Hub, tmp_path: Path) -> None:
    status, out, err = qserve(hub, tmp_path, "pull", "me/model", "--max-model-len", "512")
    folder = tmp_path / "models--me--model" / "snapshots" / COMMIT
    assert status == 0, err
    assert out.splitlines()[0].startswith(" fits  me/model · 2.02M")
    assert out.splitlines()[-2:] == [
        f"Fetched and verified: {folder}",
        "Serve it: qserve up --model me/model --max-model-len 512",
    ]
    assert f"me/model at aaaaaaaa: 3.9 MiB in {len(FILES)} files; the disk has" in err
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == FILES

    asked = hub.asked.total()
    status, out, _ = qserve(hub, tmp_path, "pull", "me/model", "--json")
    assert json.loads(out) == {"id": "me/model", "revision": COMMIT, "folder": str(folder), "fetched_bytes": 0}
    assert hub.asked.total() == asked, "it is there: nobody is asked"

    status, out, _ = qserve(hub, tmp_path, "models", "--local", "--json")
    [row] = json.loads(out)
    assert (row["id"], row["commit"], row["refs"], row["folder"]) == ("me/model", COMMIT, ["main"], str(folder))
    assert row["num_bytes"] == sum(map(len, FILES.values()))

    with running("me/model", COMMIT, tmp_path / "state") as state:
        status, out, err = qserve(hub, tmp_path, "models", "rm", "me/model", *state)
        assert (status, out) == (2, "") and folder.is_dir()
        assert "me/model is used by what runs here: 20261121-120000-1 at http://127.0.0.1:8000" in " ".join(err.split())
        anyway = qserve(hub, tmp_path, "models", "rm", "me/model", *state, "--anyway")
    assert anyway[:2] == (0, "deleted me/model: 3.9 MiB are free\n")
    _, out, err = qserve(hub, tmp_path, "models", "--local")
    assert (out, err) == ("", "No model of the hub is on this machine; qserve pull Qwen/Qwen3-8B fetches one\n")


def test_what_does_not_fit_is_not_fetched_unless_it_is_asked_for(hub: Hub, tmp_path: Path) -> None:
    flags = ("--gpu", "memory=300MiB,sm=90", "--engine", "vllm")
    status, out, err = qserve(hub, tmp_path, "pull", "me/model", *flags)
    assert status == 3 and "does not fit" in out
    assert "Nothing was fetched; --anyway fetches it all the same" in err
    assert not list(tmp_path.iterdir())
    status, out, _ = qserve(hub, tmp_path, "pull", "me/model", *flags, "--anyway")
    assert status == 0 and "Fetched and verified" in out


def test_what_can_not_be_planned_is_fetched_by_its_id(hub: Hub, tmp_path: Path) -> None:
    status, out, _ = qserve(hub, tmp_path, "pull", "me/reward@v1", "--no-plan")
    assert status == 0 and out.startswith("Fetched and verified: ") and "Serve it" not in out
    status, _, err = qserve(hub, tmp_path, "pull", "demo", "--no-plan")
    assert status == 2 and "ORGANISATION/NAME" in err


def test_a_reward_model_is_planned_by_its_headers_and_fetched_beside_a_chat_model(hub: Hub, tmp_path: Path) -> None:
    hub.others["me/rm"] = REWARD
    status, out, err = qserve(hub, tmp_path, "plan", "--reward", "me/rm")
    assert status == 0 and out.startswith(" fits  me/rm · 2.90M"), err
    assert not list(tmp_path.iterdir())
    status, out, err = qserve(hub, tmp_path, "pull", "me/model", "--reward", "me/rm@v1", "--json")
    assert status == 0, err
    chat = json.loads(out)
    reward = chat.pop("reward")
    assert (chat["id"], chat["revision"], chat["fetched_bytes"]) == ("me/model", COMMIT, sum(map(len, FILES.values())))
    assert (reward["id"], reward["revision"], reward["fetched_bytes"]) == (
        "me/rm",
        OLDER,
        sum(map(len, REWARD.values())),
    )
    status, out, _ = qserve(hub, tmp_path, "pull", "--reward", "me/rm@v1")
    assert out.splitlines()[-2:] == [f"It is there: {reward['folder']}", "Serve it: qserve up --reward me/rm@v1"]
    status, _, err = qserve(hub, tmp_path, "pull", "me/model", "--reward", "me/rm", "--no-plan")
    assert status == 2 and "leave --reward out" in err


def test_a_terminal_shows_a_bar_with_rate_and_time_left(hub: Hub, tmp_path: Path) -> None:
    """Of all files together, on two lines that fit 80 columns; what is printed at last takes their place."""
    hub.pause_s = 0.03
    where = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "0", "TERM": "xterm-256color"}
    terminal = Terminal(sys.executable, "-m", "qserve", "pull", "me/model", "--no-plan", **where)
    terminal.until("/s · ")
    terminal.until("s left")
    terminal.until("Fetched and verified")
    hub.pause_s = 0.0
    assert terminal.status() == 0
    lines = [one.rstrip() for one in re.split(r"[\r\n]+", _CONTROL.sub("", terminal.screen))]
    [bar, *_] = [one for one in lines if "s left" in one]
    assert re.search(r"━*╸━* [ \d]\d % · [\d.]+ [KM]iB of 3.9 MiB · [\d.]+ [KM]iB/s · [\d.]+ m?s left$", bar)
    assert max(len(one) for one in lines if "━" in one) <= 80
    assert any(one.startswith("⠋ fetching me/model") or "fetching me/model" in one for one in lines)


@pytest.mark.parametrize("how", [(), ("--no-plan",)])
def test_a_gated_model_has_its_way_out(hub: Hub, tmp_path: Path, how: tuple[str, ...]) -> None:
    status, _, err = qserve(hub, tmp_path, "pull", "me/gated", *how)
    assert status == 2
    assert f"accept them on {hub.url}/me/gated, then set HF_TOKEN" in " ".join(err.split())


def test_an_adapter_is_merged_into_a_base_that_is_fetched(hub: Hub, tmp_path: Path) -> None:
    adapter, out = tmp_path / "adapter", tmp_path / "merged"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "me/model"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    write_safetensors(
        adapter / "adapter_model.safetensors",
        {f"{module}.lora_A.weight": (2, 192), f"{module}.lora_B.weight": (256, 2)},
    )
    status, printed, err = qserve(hub, tmp_path / "cache", "merge", str(adapter), "--out", str(out))
    assert status == 0, err
    assert printed.splitlines()[-1] == f"Next    qserve up --model {out}"
    assert f"| base | me/model at {COMMIT} |" in (out / "README.md").read_text()
    assert "base_model: me/model\n" in (out / "README.md").read_text()
    # Factors of zeros change nothing: the weights are the demo's.
    assert (out / "tokenizer.json").read_bytes() == FILES["tokenizer.json"]
    assert (out / "model.safetensors").stat().st_size > 4_000_000
