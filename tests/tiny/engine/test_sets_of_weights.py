"""A folder with more than one set of weights, and what is served of it: what the plan counts, on both engines."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from qserve.detect import detect
from qserve.errors import BrokenCheckpoint
from qserve.hub.folder import weight_files
from qserve.hub.resolve import resolve
from qserve.hub.served_folder import clean_folder
from qserve.model.load import load
from qserve.planner import PlanRequest, make_plan
from tests.tiny.reward.make_checkpoints import SHAPE, tokenizer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def config_of(**more: Any) -> Qwen3Config:
    tok = tokenizer()
    return Qwen3Config(**{**SHAPE, **more}, vocab_size=len(tok) + 8, pad_token_id=tok.pad_token_id)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(1)
    Qwen3ForCausalLM(config_of()).save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def marked(folder: Path) -> dict[str, torch.Tensor]:
    """Another model's weights: each is 1 more."""
    return {name: tensor + 1 for name, tensor in load_file(folder / SINGLE).items()}


def sharded(folder: Path, count: int = 2, files: str = "model-{}-of-{}.safetensors") -> list[str]:
    """The folder's weights as shards with an index, in place of the single file; their names."""
    state = load_file(folder / SINGLE)
    names = [files.format(f"{number + 1:05}", f"{count:05}") for number in range(count)]
    places = {tensor: names[index % count] for index, tensor in enumerate(sorted(state))}
    for name in names:
        save_file({one: state[one] for one, place in places.items() if place == name}, folder / name, {"format": "pt"})
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / SINGLE).unlink()
    return names


def stray_single(folder: Path) -> list[str]:
    other = marked(folder)
    sharded(folder)
    save_file(other, folder / SINGLE, {"format": "pt"})
    return [SINGLE]


def consolidated(folder: Path) -> list[str]:
    save_file(marked(folder), folder / "consolidated.safetensors", {"format": "pt"})
    return ["consolidated.safetensors"]


def consolidated_beside_shards(folder: Path) -> list[str]:
    consolidated(folder)
    sharded(folder)
    return ["consolidated.safetensors"]


def other_shards(folder: Path) -> list[str]:
    other = marked(folder)
    sharded(folder, 2)
    names = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    for name in names:
        save_file(other, folder / name, {"format": "pt"})
    return names


def pickled(folder: Path) -> list[str]:
    torch.save(marked(folder), folder / "pytorch_model.bin")
    torch.save({"step": 1}, folder / "optimizer.bin")
    return ["pytorch_model.bin"]


def variant(folder: Path) -> list[str]:
    save_file(marked(folder), folder / "model.fp16.safetensors", {"format": "pt"})
    (folder / "model-q4.gguf").write_bytes(b"GGUF")
    return ["model-q4.gguf", "model.fp16.safetensors"]


def original(folder: Path) -> list[str]:
    (folder / "original").mkdir()
    torch.save(marked(folder), folder / "original" / "consolidated.00.pth")
    return ["original/consolidated.00.pth"]


def adapter(folder: Path) -> list[str]:
    """A merged model with the files of the adapter that it was merged from, whose base is elsewhere."""
    base = AutoModelForCausalLM.from_pretrained(folder)
    base.name_or_path = str(folder.parent / "gone")
    tuned = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    tuned.save_pretrained(folder.parent / "adapter", save_embedding_layers=False)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(folder.parent / "adapter" / name, folder / name)
    return ["adapter_config.json", "adapter_model.safetensors"]


SETS: dict[str, Callable[[Path], list[str]]] = {
    "a single file beside shards": stray_single,
    "a consolidated file": consolidated,
    "a consolidated file beside shards": consolidated_beside_shards,
    "shards of another split": other_shards,
    "a pickled model": pickled,
    "a variant and another format": variant,
    "the maker's own format": original,
    "an adapter's files": adapter,
}


@pytest.mark.parametrize("name", SETS)
def test_what_the_plan_counts_is_what_is_served(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    alone = resolve(str(folder))
    state = {one: tensor.clone() for one, tensor in load_file(folder / SINGLE).items()}
    left_out = SETS[name](folder)
    checkpoint = resolve(str(folder))
    assert sum(one.nbytes for one in checkpoint.tensors or ()) == sum(one.nbytes for one in alone.tensors or ())
    (note,) = checkpoint.messages
    assert all(one in note for one in left_out)
    assert "optimizer" not in note
    plan = make_plan(checkpoint, detect(), PlanRequest(engine="transformers", dtype="float32", max_model_len=64))
    seen = clean_folder(folder)
    served = load(seen, plan).model.state_dict()
    assert all(torch.equal(served[one], tensor) for one, tensor in state.items())
    # vLLM reads every *.safetensors of the folder that it is given, consolidated ones first.
    assert sorted(one.name for one in seen.glob("*.safetensors")) == [one.name for one in weight_files(folder).read]
    assert not (seen / "adapter_config.json").exists()
    assert clean_folder(folder) == seen


def test_a_folder_of_one_set_is_taken_as_it_is(folder: Path) -> None:
    assert clean_folder(folder) == folder
    assert resolve(str(folder)).messages == ()
    sharded(folder)
    save_file({"v_head.summary.weight": torch.zeros(1, 64)}, folder / "value_head.safetensors")
    assert clean_folder(folder) == folder


def test_an_adapter_without_a_model_is_named(folder: Path) -> None:
    adapter(folder)
    (folder / SINGLE).unlink()
    with pytest.raises(BrokenCheckpoint, match=r"has a peft adapter .* and no model"):
        resolve(str(folder))


@pytest.mark.parametrize("own", [True, False])
def test_a_tied_config_beside_a_head_of_its_own(
    own: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = load_file(folder / SINGLE)
    table = state["model.embed_tokens.weight"]
    state["lm_head.weight"] = (table + 1) if own else table.clone()
    save_file(state, folder / SINGLE, {"format": "pt"})
    checkpoint, seen = resolve(str(folder)), clean_folder(folder)
    assert checkpoint.spec.tie_word_embeddings is not own
    assert [("lm_head.weight that differs from the embedding" in note) for note in checkpoint.messages] == [True] * own
    assert json.loads((seen / "config.json").read_text())["tie_word_embeddings"] is not own
    plan = make_plan(checkpoint, detect(), PlanRequest(engine="transformers", dtype="float32", max_model_len=64))
    served = load(seen, plan).model
    assert torch.equal(served.get_output_embeddings().weight, state["lm_head.weight"])
