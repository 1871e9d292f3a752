"""An adapter merged by qserve is the adapter merged by peft, and loads as a model of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from qserve.cli.main import cli
from qserve.demo import chat_model_path
from qserve.derive.merge.adapter import read_adapter
from qserve.derive.merge.plan import plan_merge
from qserve.derive.tensor_files import write_tensors
from qserve.hub import resolve
from qserve.reward.checkpoints import recognise
from qserve.reward.settings import RewardSettings
from tests.tiny.reward.make_checkpoints import SHAPE, lora

IDS = torch.tensor([[5, 17, 33, 90, 2]])
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "patterns": {"use_rslora": True, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 3}},
    "dora": {"use_dora": True},
    "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
    "saved": {"modules_to_save": ["embed_tokens", "lm_head"]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    Qwen3ForCausalLM(Qwen3Config(**SHAPE, vocab_size=1280)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(chat_model_path()).save_pretrained(folder)
    return folder


def trained(base: Path, folder: Path, **keys: Any) -> Path:
    settings = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "down_proj"], **keys}
    adapted = get_peft_model(Qwen3ForCausalLM.from_pretrained(base), LoraConfig(**settings))
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder, save_embedding_layers=False)  # auto asks the hub
    return folder


def merged(*arguments: str) -> dict[str, Any]:
    done = CliRunner().invoke(cli, ["merge", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True`", "ignore:.*tied.*", "ignore:.*save_embedding_layers.*"
)
@pytest.mark.parametrize("kind", KINDS)
def test_it_answers_as_base_and_adapter_do(base: Path, tmp_path: Path, kind: str) -> None:
    adapter = trained(base, tmp_path / "adapter", **KINDS[kind])
    assert merged(str(adapter), "--out", str(tmp_path / "out"))["is_reward"] is False
    beside = PeftModel.from_pretrained(Qwen3ForCausalLM.from_pretrained(base), adapter)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        wanted, got = beside(IDS).logits, whole(IDS).logits
    assert torch.allclose(got, wanted, atol=2e-5), (got - wanted).abs().max()
    assert not torch.allclose(wanted, Qwen3ForCausalLM.from_pretrained(base)(IDS).logits, atol=1e-2)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").chat_template
    assert resolve(str(tmp_path / "out")).messages == ()


def test_a_reward_model_scores_as_its_adapter_does(tmp_path: Path) -> None:
    adapter = lora(tmp_path)
    assert merged(str(adapter), "--out", str(tmp_path / "out"))["is_reward"] is True
    bare = AutoModelForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=1)
    whole = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        assert torch.allclose(whole(IDS).logits, PeftModel.from_pretrained(bare, adapter)(IDS).logits, atol=2e-5)
    found = recognise(tmp_path / "out", RewardSettings())
    assert found.format == "sequence-classification" and found.head.num_labels == 1


def test_precision_is_the_bases(base: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "bf16")
    adapter = trained(base, tmp_path / "adapter")
    merged(str(adapter), "--into", str(tmp_path / "bf16"), "--out", str(tmp_path / "out"))
    assert {one.dtype for one in resolve(str(tmp_path / "out")).tensors or ()} == {"BF16"}


def test_large_weights_are_several_files(base: Path, tmp_path: Path) -> None:
    plan = plan_merge(read_adapter(trained(base, tmp_path / "adapter")), base, "base")
    tensors = AutoModelForCausalLM.from_pretrained(base).state_dict()
    out = tmp_path / "out"
    out.mkdir()
    done = list(write_tensors(out, ((name, tensors[name]) for name in plan.tensors), plan.sizes, 100_000))
    assert len(done) > 2 and done[-1] == plan.num_bytes
    AutoTokenizer.from_pretrained(base).save_pretrained(out)
    (out / "config.json").write_text((base / "config.json").read_text())
    assert len(resolve(str(out)).tensors or ()) == len(plan.tensors)
    assert torch.equal(
        AutoModelForCausalLM.from_pretrained(out)(IDS).logits, AutoModelForCausalLM.from_pretrained(base)(IDS).logits
    )
