"""Which format a path holds, from headers alone; and what is refused, with what was found."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from qserve.errors import BrokenCheckpoint, ModelNotFound
from qserve.reward.checkpoints import RewardCheckpoint, recognise
from qserve.reward.settings import RewardSettings
from tests.unit.reward.stored import HIDDEN, body, write_adapter, write_folder, write_safetensors


def found(path: Path, **settings: Any) -> RewardCheckpoint:
    return recognise(path, RewardSettings(**settings))


def test_a_sequence_classifier(tmp_path: Path) -> None:
    checkpoint = found(write_folder(tmp_path, body() | {"score.weight": (1, HIDDEN)}))
    assert (checkpoint.format, checkpoint.pooling, checkpoint.body_prefix) == (
        "sequence-classification",
        "last",
        "model.",
    )
    assert (checkpoint.head.num_labels, checkpoint.head.has_bias) == (1, False)
    assert len(checkpoint.body) == 4


def test_a_reward_model_with_two_layers(tmp_path: Path) -> None:
    head = {
        "score.0.weight": (HIDDEN, HIDDEN),
        "score.0.bias": (HIDDEN,),
        "score.2.weight": (1, HIDDEN),
        "score.2.bias": (1,),
    }
    checkpoint = found(write_folder(tmp_path, body() | head, architectures=["Qwen2ForRewardModel"], model_type="qwen2"))
    assert checkpoint.format == "reward-model"
    assert [layer.weight.name for layer in checkpoint.head.layers] == ["score.0.weight", "score.2.weight"]


def test_a_process_reward_model_and_its_step_token(tmp_path: Path) -> None:
    head = {
        "score.0.weight": (HIDDEN, HIDDEN),
        "score.0.bias": (HIDDEN,),
        "score.2.weight": (2, HIDDEN),
        "score.2.bias": (2,),
    }
    path = write_folder(tmp_path, body() | head, architectures=["Qwen2ForProcessRewardModel"], model_type="qwen2")
    assert (found(path).format, found(path).step_token_id) == ("process-reward-model", 99)
    assert found(path, step_token="a").step_token_id == 0
    with pytest.raises(BrokenCheckpoint, match=r"no token '<step>'.*--step-token"):
        found(path, step_token="<step>")


@pytest.mark.parametrize("prefix", ["", "pretrained_model."])
@pytest.mark.parametrize("own_file", [False, True])
def test_a_value_head_beside_a_causal_model(tmp_path: Path, prefix: str, own_file: bool) -> None:
    head = {"v_head.summary.weight": (1, HIDDEN), "v_head.summary.bias": (1,)}
    model = body(f"{prefix}model.") | {f"{prefix}lm_head.weight": (100, HIDDEN)}
    path = write_folder(tmp_path, model if own_file else model | head, architectures=["Qwen3ForCausalLM"])
    if own_file:
        write_safetensors(path / "value_head.safetensors", head)
    checkpoint = found(path)
    assert (checkpoint.format, checkpoint.body_prefix) == ("value-head", f"{prefix}model.")
    assert checkpoint.head.has_bias
    assert not [tensor for tensor in checkpoint.body if "lm_head" in tensor.name]


@pytest.mark.parametrize("wrapper", ["", "module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("bias", [False, True])
def test_a_training_script_s_own_head(tmp_path: Path, wrapper: str, bias: bool) -> None:
    head = {f"{wrapper}reward_head.weight": (1, HIDDEN)} | ({f"{wrapper}reward_head.bias": (1,)} if bias else {})
    base = write_folder(tmp_path / "base", body(), architectures=["Qwen3ForCausalLM"])
    write_safetensors(tmp_path / "state.safetensors", body(f"{wrapper}base_model.model.") | head)
    checkpoint = found(tmp_path / "state.safetensors", base=str(base))
    assert (checkpoint.format, checkpoint.head.has_bias) == ("reward-head", bias)
    assert checkpoint.body_prefix == f"{wrapper}base_model.model."
    assert checkpoint.tokenizer == base
    assert "padding" in checkpoint.notes[0]


def test_an_adapter_with_its_head(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", body(), architectures=["Qwen3ForCausalLM"])
    head = {
        "base_model.model.score.weight": (1, HIDDEN),
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": (4, HIDDEN),
    }
    adapter = write_adapter(tmp_path / "adapter", str(base), head)
    checkpoint = found(adapter)
    assert (checkpoint.format, checkpoint.adapter, checkpoint.base) == ("lora", adapter, base)
    assert found(write_adapter(tmp_path / "near", "../base", head)).base.resolve() == base


def test_openrlhf_writes_its_head_s_name_and_the_rewards_mean(tmp_path: Path) -> None:
    config = {"architectures": ["RewardModel"], "value_head_prefix": "value_head", "mean": 0.5, "std": 2}
    checkpoint = found(write_folder(tmp_path, body() | {"value_head.weight": (1, HIDDEN)}, **config))
    assert (checkpoint.format, checkpoint.mean, checkpoint.std, checkpoint.forced_eos) == ("openrlhf", 0.5, 2.0, True)


def test_a_multimodal_checkpoint_s_language_model_is_the_body(tmp_path: Path) -> None:
    text = json.loads((write_folder(tmp_path / "text", {}) / "config.json").read_text())
    tensors = body("model.language_model.") | {"model.visual.blocks.0.norm1.weight": (8,), "score.weight": (1, HIDDEN)}
    checkpoint = found(write_folder(tmp_path / "all", tensors, model_type="qwen3_vl", text_config=text, hidden_size=8))
    assert checkpoint.config == text
    assert checkpoint.body_prefix == "model.language_model."
    assert len(checkpoint.body) == 4


def test_the_plan_counts_body_and_head_and_no_lm_head(tmp_path: Path) -> None:
    tensors = body() | {"lm_head.weight": (100, HIDDEN), "v_head.summary.weight": (1, HIDDEN)}
    planned = found(write_folder(tmp_path, tensors, architectures=["Qwen3ForCausalLM"])).planned()
    assert planned.spec.head.kind == "score"
    assert planned.tensors is not None
    assert planned.parameters == 100 * HIDDEN + HIDDEN + 128 * HIDDEN + HIDDEN + HIDDEN
    assert "lm_head" not in {tensor.role for tensor in planned.tensors}


REFUSED: dict[str, tuple[dict[str, tuple[int, ...]], dict[str, Any], str]] = {
    "no head in a causal merge": (
        body() | {"lm_head.weight": (100, HIDDEN)},
        {"architectures": ["Qwen3ForCausalLM"]},
        r"causal language model and has no reward head.*AutoModelForCausalLM drops it.*--head",
    ),
    "no head at all": (body(), {}, r"no reward head among its 4 tensors.*--head NAME"),
    "heads of the checkpoint's own code": (
        body() | {"risk_level_category_pre.weight": (16, HIDDEN), "risk_level_head.weight": (3, 16)},
        {"architectures": ["Qwen3ForGuardModel"]},
        r"is planned only: its heads are computed by Python code in the checkpoint.*Qwen3Guard-Gen",
    ),
    "another width": (body() | {"score.weight": (1, 32)}, {}, r"shape \[1, 32\], but the body's hidden size is 64"),
    "three labels behind a ReLU": (
        body() | {"score.0.weight": (HIDDEN, HIDDEN), "score.2.weight": (3, HIDDEN)},
        {},
        r"has 3 labels after a ReLU",
    ),
    "a bias that does not fit": (body() | {"score.weight": (1, HIDDEN), "score.bias": (2,)}, {}, "shape"),
    "a head without a body": ({"score.weight": (1, HIDDEN)}, {}, r"no body \(no embed_tokens.weight\)"),
    "nothing": ({}, {}, "has no weights"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused_with_what_was_found(what: str, tmp_path: Path) -> None:
    tensors, config, message = REFUSED[what]
    with pytest.raises(BrokenCheckpoint, match=message):
        found(write_folder(tmp_path, tensors, **config))


def test_an_embedding_model_is_told_from_a_model_that_lost_its_head(tmp_path: Path) -> None:
    path = write_folder(tmp_path, body(""), architectures=["Qwen3ForCausalLM"])
    (path / "modules.json").write_text("[]")
    with pytest.raises(BrokenCheckpoint, match=r"is an embedding model .*not a reward.*qserve up --embed.*reranker"):
        recognise(path, RewardSettings())


def test_a_gating_network_is_refused_and_its_attributes_can_be_had(tmp_path: Path) -> None:
    """ArmoRM's tensors."""
    gating = {"gating.layers.0.weight": (8, HIDDEN), "regression_layer.weight": (3, HIDDEN)}
    transform = {"reward_transform_matrix": (3, 3)}
    path = write_folder(tmp_path, body() | gating | transform, architectures=["LlamaForRewardModelWithGating"])
    with pytest.raises(BrokenCheckpoint, match=r"gating network.*trust_remote_code.*3 attributes.*--head regression"):
        found(path)
    alone = found(path, head="regression_layer", weights="LABEL_0=1")
    assert (alone.format, alone.weights) == ("multi-attribute", (1.0, 0.0, 0.0))


def test_a_head_that_was_asked_for_and_is_not_there(tmp_path: Path) -> None:
    path = write_folder(tmp_path, body() | {"my_head.weight": (1, HIDDEN)})
    assert found(path, head="my_head").head.prefix == "my_head"
    with pytest.raises(BrokenCheckpoint, match=r"no head 'other' \(--head\).*my_head.weight"):
        found(path, head="other")


def test_an_adapter_without_its_base(tmp_path: Path) -> None:
    adapter = write_adapter(
        tmp_path / "adapter", "/trainer/models/Qwen3-8B", {"base_model.model.score.weight": (1, HIDDEN)}
    )
    with pytest.raises(
        ModelNotFound, match=r"trained on '/trainer/models/Qwen3-8B', which is not on this machine.*--base"
    ):
        found(adapter)
    with pytest.raises(ModelNotFound, match=r"--base '.*nowhere' has no config.json"):
        found(adapter, base=str(tmp_path / "nowhere"))


def test_a_pipe_in_an_adapter_is_not_read(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", body(), tokenizer=False)
    adapter = write_adapter(tmp_path / "adapter", str(base), {"base_model.model.score.weight": (1, HIDDEN)})
    (adapter / "tokenizer.json").write_text("{}")
    os.mkfifo(adapter / "tokenizer_config.json")
    with pytest.raises(BrokenCheckpoint, match=r"tokenizer_config\.json is a named pipe"):
        found(adapter)


def test_an_adapter_that_lost_its_head(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", body(), architectures=["Qwen3ForCausalLM"])
    adapter = write_adapter(
        tmp_path / "adapter", str(base), {"base_model.model.model.layers.0.q.lora_A.weight": (4, HIDDEN)}
    )
    with pytest.raises(BrokenCheckpoint, match=r"neither the adapter .* nor its base .* has a head.*modules_to_save"):
        found(adapter)


def test_an_adapter_goes_on_from_the_head_of_its_base(tmp_path: Path) -> None:
    base = write_folder(tmp_path / "base", body() | {"score.weight": (1, HIDDEN)})
    adapter = write_adapter(
        tmp_path / "adapter", str(base), {"base_model.model.model.layers.0.q.lora_A.weight": (4, HIDDEN)}
    )
    assert found(adapter).head.layers[0].weight.file == base / "model.safetensors"


def test_a_single_file_needs_its_base(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "rm.safetensors", body("base_model.model.") | {"reward_head.weight": (1, HIDDEN)})
    with pytest.raises(BrokenCheckpoint, match=r"no config.json.*--base FOLDER"):
        found(tmp_path / "rm.safetensors")
    with pytest.raises(ModelNotFound, match=r"--base .* is not a folder"):
        found(tmp_path / "rm.safetensors", base=str(tmp_path / "nowhere"))


def test_nothing_there_and_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no reward model at"):
        found(tmp_path / "nowhere")
    with pytest.raises(BrokenCheckpoint, match="has no tokenizer"):
        found(write_folder(tmp_path / "bare", body() | {"score.weight": (1, HIDDEN)}, tokenizer=False))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = write_folder(tmp_path, {})
    index = {"weight_map": {"model.norm.weight": "model-1.safetensors", "score.weight": "model-2.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    write_safetensors(path / "model-1.safetensors", {"model.norm.weight": (HIDDEN,)})
    with pytest.raises(BrokenCheckpoint, match=r"lacks 1 of 2 shards \(model-2.safetensors"):
        found(path)


def test_headers_are_read_without_torch() -> None:
    import subprocess

    code = "import sys, qserve.reward.checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _classifier(folder: Path, **config: Any) -> Path:
    named = {"architectures": ["Qwen2ForSequenceClassification"], "model_type": "qwen2", **config}
    return write_folder(folder, body() | {"score.weight": (1, HIDDEN)}, **named)


@pytest.mark.parametrize("other", ["model.fp16.safetensors", "consolidated.safetensors"])
def test_of_two_sets_of_weights_the_one_is_counted_that_is_read(tmp_path: Path, other: str) -> None:
    alone, folder = found(_classifier(tmp_path / "alone")), _classifier(tmp_path / "two")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    write_safetensors(folder / other, body() | {"score.weight": (1, HIDDEN)})
    assert len(found(folder).body) == len(alone.body)


def test_a_hidden_size_that_is_none_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BrokenCheckpoint):
        found(_classifier(tmp_path, hidden_size=None))


def test_a_vocabulary_with_ids_that_are_no_numbers(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, body() | {"lm_head.weight": (100, HIDDEN)}, architectures=["Qwen2ForCausalLM"])
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"yes": "1", "no": 2}}}))
    with pytest.raises(BrokenCheckpoint, match=r"no token 'yes', with which a reranker answers.*--answer-tokens"):
        found(folder, answer_tokens="yes,no")
