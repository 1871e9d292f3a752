"""Tiny Qwen checkpoints of each format, written as the library that makes the format writes it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from safetensors.torch import save_file
from tokenizers.processors import TemplateProcessing
from torch import nn
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2ForSequenceClassification,
    Qwen2Model,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    Qwen3Model,
    Qwen3MoeConfig,
    Qwen3MoeForSequenceClassification,
)

from qserve.demo import chat_model_path

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": True,
}


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(chat_model_path())


def _config(cls: type, **more: Any) -> Any:
    tok = tokenizer()
    return cls(**SHAPE, vocab_size=len(tok) + 8, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, **more)


def _save(folder: Path, config: Any, state: dict[str, torch.Tensor], **written: Any) -> Path:
    """config.json and model.safetensors by hand, as remote code's `save_pretrained` leaves them."""
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    data = json.loads((folder / "config.json").read_text()) | {"dtype": "float32", **written}
    (folder / "config.json").write_text(json.dumps(data))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    tokenizer().save_pretrained(folder)
    return folder


def _linear(num_labels: int, *, bias: bool = False) -> nn.Linear:
    """A head with scores of a size that rounding can be seen in."""
    layer = nn.Linear(SHAPE["hidden_size"], num_labels, bias=bias)
    nn.init.normal_(layer.weight, std=0.3)
    return layer


def _with_scores(model: Any) -> Any:
    nn.init.normal_(model.score.weight, std=0.3)
    return model


def sequence_classification(folder: Path, family: str = "qwen3") -> Path:
    config, cls = {
        "qwen2": (Qwen2Config, Qwen2ForSequenceClassification),
        "qwen3": (Qwen3Config, Qwen3ForSequenceClassification),
        "llama": (LlamaConfig, LlamaForSequenceClassification),
        "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForSequenceClassification),
    }[family]
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32} if "moe" in family else {}
    model = _with_scores(cls(_config(config, num_labels=1, **experts)))
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def multi_attribute(folder: Path) -> Path:
    """A five-label regression model, as HelpSteer's attributes are trained."""
    names = ("helpfulness", "correctness", "coherence", "complexity", "verbosity")
    ids = {name: index for index, name in enumerate(names)}
    config = _config(Qwen2Config, num_labels=5, id2label=dict(enumerate(names)), label2id=ids)
    _with_scores(Qwen2ForSequenceClassification(config)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def reranker(folder: Path) -> Path:
    """A causal model of which two tokens are read; config.json names them as vLLM's users do."""
    tok = tokenizer()
    tok.add_tokens(["yes", "no"])
    model = Qwen3ForCausalLM(_config(Qwen3Config))
    nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    model.save_pretrained(folder)
    tok.save_pretrained(folder)
    data = json.loads((folder / "config.json").read_text()) | {"classifier_from_token": ["no", "yes"]}
    (folder / "config.json").write_text(json.dumps(data))
    return folder


def trained_reranker(folder: Path) -> Path:
    """The demo as a reranker of what it was trained on: query and document are numbers, yes says the first is larger.

    Beside it `larger.jinja`, which asks so.
    """
    shutil.copytree(chat_model_path(), folder)
    data = json.loads((folder / "config.json").read_text()) | {"classifier_from_token": ["No", "Yes"]}
    (folder / "config.json").write_text(json.dumps(data))
    asked = [{"role": "user", "content": "Is QUERY larger than DOCUMENT?"}]
    text = tokenizer().apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    text = text.replace("QUERY", "{{ messages[0].content }}").replace("DOCUMENT", "{{ messages[1].content }}")
    (folder / "larger.jinja").write_text(f"{text}\n")  # Jinja takes the last line break for the file's own
    return folder


def sliding_window(folder: Path) -> Path:
    """The second layer sees the last 16 tokens only."""
    config = _config(Qwen2Config, num_labels=1, use_sliding_window=True, sliding_window=16, max_window_layers=1)
    _with_scores(Qwen2ForSequenceClassification(config)).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def hybrid(folder: Path) -> Path:
    """Three linear-attention layers to one full one, with a score in place of the language-model head."""
    config = _config(
        Qwen3_5TextConfig,
        layer_types=["linear_attention", "full_attention"],
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
    )
    state = {f"model.{n}": t for n, t in Qwen3_5ForCausalLM(config).model.state_dict().items()}
    return _save(
        folder,
        config,
        state | {"score.weight": _linear(1).weight.detach()},
        architectures=["Qwen3_5TextForSequenceClassification"],
        num_labels=1,
    )


def mlp_head(folder: Path, num_labels: int) -> Path:
    """The head of Qwen2.5-Math-RM (one label) and of Qwen2.5-Math-PRM (two), whose classes are remote code upstream."""
    body, config = Qwen2Model(_config(Qwen2Config)), _config(Qwen2Config)
    score = nn.Sequential(_linear(SHAPE["hidden_size"], bias=True), nn.ReLU(), _linear(num_labels, bias=True))
    state = {f"model.{n}": t for n, t in body.state_dict().items()} | {
        f"score.{n}": t.detach() for n, t in score.state_dict().items()
    }
    name = "Qwen2ForRewardModel" if num_labels == 1 else "Qwen2ForProcessRewardModel"
    tok = tokenizer()
    tok.add_special_tokens({"additional_special_tokens": ["<extra_0>"]}, replace_extra_special_tokens=False)
    saved = _save(folder, config, state, architectures=[name])
    tok.save_pretrained(saved)
    return saved


def value_head(folder: Path, *, own_file: bool) -> Path:
    """TRL's AutoModelForCausalLMWithValueHead: the language model's tensors, and `v_head.summary.*` beside them.

    TRL before 1.0 wrote both into one file; LLaMA-Factory moves the head to value_head.safetensors.
    """
    model = Qwen3ForCausalLM(_config(Qwen3Config))
    summary = _linear(1, bias=True)
    head = {f"v_head.summary.{n}": t.detach() for n, t in summary.state_dict().items()}
    if own_file:
        model.save_pretrained(folder)
        tokenizer().save_pretrained(folder)
        save_file(head, folder / "value_head.safetensors")
        return folder
    state = {n: t for n, t in model.state_dict().items() if n != "lm_head.weight"}
    return _save(folder, model.config, state | head, architectures=["Qwen3ForCausalLM"])


class RewardModel(nn.Module):
    """The class of the training script: a causal base and a linear head."""

    def __init__(self, base: nn.Module, *, bias: bool) -> None:
        super().__init__()
        self.base_model = base
        self.reward_head = _linear(1, bias=bias)


def accelerate_script(folder: Path, *, bias: bool, wrapped: bool = False) -> tuple[Path, Path]:
    """(state dict in a .pt file, folder of the base): what `accelerator.save(unwrapped.state_dict())` leaves."""
    base = Qwen2ForCausalLM(_config(Qwen2Config))
    base.save_pretrained(folder / "base")
    tokenizer().save_pretrained(folder / "base")
    state = RewardModel(base, bias=bias).state_dict()
    if wrapped:
        state = {f"module.{name}": tensor for name, tensor in state.items()}
    torch.save({"model_state_dict": state, "step": 10} if wrapped else state, folder / "reward_model.pt")
    return folder / "reward_model.pt", folder / "base"


def lora(folder: Path, *, modules_to_save: bool = True) -> Path:
    """peft's adapter on a causal base loaded as a sequence classifier, as most people train one."""
    base = folder / "base"
    Qwen3ForCausalLM(_config(Qwen3Config)).save_pretrained(base)
    tokenizer().save_pretrained(base)
    model = _with_scores(Qwen3ForSequenceClassification.from_pretrained(base, num_labels=1))
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS if modules_to_save else TaskType.FEATURE_EXTRACTION,
        r=4,
        lora_alpha=16,
        target_modules=["q_proj", "v_proj", "down_proj"],
        modules_to_save=["score"] if modules_to_save else None,
    )
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder / "adapter")
    return folder / "adapter"


def value_head_adapter(folder: Path) -> Path:
    """LLaMA-Factory's reward model by LoRA: a causal adapter, and the value head in a file of its own beside it."""
    base = folder / "base"
    Qwen3ForCausalLM(_config(Qwen3Config)).save_pretrained(base)
    tokenizer().save_pretrained(base)
    model = Qwen3ForCausalLM.from_pretrained(base)
    config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=4, lora_alpha=8, target_modules=["q_proj", "o_proj"])
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.05)
    adapted.save_pretrained(folder / "adapter")
    head = {f"v_head.summary.{n}": t.detach() for n, t in _linear(1, bias=True).state_dict().items()}
    save_file(head, folder / "adapter" / "value_head.safetensors")
    return folder / "adapter"


def openrlhf(folder: Path) -> Path:
    """OpenRLHF's RewardModel class: its own name for the head and the rewards' mean and deviation in config.json."""
    config = _config(Qwen2Config)
    state = {f"model.{n}": t for n, t in Qwen2Model(config).state_dict().items()}
    return _save(
        folder,
        config,
        state | {"value_head.weight": _linear(1).weight.detach()},
        architectures=["RewardModel"],
        value_head_prefix="value_head",
        normalize_reward=True,
        mean=0.25,
        std=1.5,
    )


PROMPTS = {"query": "Instruct: Find the number that answers the query\nQuery:", "document": ""}


def embedder(folder: Path, pooling: str = "lasttoken", *, dense: int | None = None, is_causal: bool = True) -> Path:
    """As Qwen3-Embedding's folder is: the body alone, a tokenizer that ends each text, sentence-transformers' files."""
    family = (Qwen3Config, Qwen3Model) if is_causal else (Qwen2Config, Qwen2Model)  # gte-Qwen2
    body = family[1](_config(family[0], **({} if is_causal else {"is_causal": False})))
    nn.init.normal_(body.get_input_embeddings().weight, std=0.3)
    _save(folder, body.config, body.state_dict(), architectures=[f"{family[0].model_type.capitalize()}ForCausalLM"])
    tok = tokenizer()
    end = ("$A " + tok.eos_token, [(tok.eos_token, tok.eos_token_id)])
    tok.backend_tokenizer.post_processor = TemplateProcessing(single=end[0], special_tokens=end[1])
    tok.save_pretrained(folder)
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), "Normalize"]
    steps = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{kind}" if at else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for at, kind in enumerate(kinds)
    ]
    switches = {name: name.startswith(f"pooling_mode_{pooling}") for name in _SWITCHES}
    size = SHAPE["hidden_size"]
    written: dict[str, Any] = {
        "modules.json": steps,
        "1_Pooling/config.json": {"word_embedding_dimension": size, **switches, "include_prompt": True},
        "config_sentence_transformers.json": {"prompts": PROMPTS, "default_prompt_name": None},
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
    }
    if dense:
        activation = "torch.nn.modules.linear.Identity"
        about = {"in_features": size, "out_features": dense, "bias": True, "activation_function": activation}
        written["2_Dense/config.json"] = about
    for name, content in written.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    if dense:
        state = {f"linear.{name}": value.detach() for name, value in _linear(dense, bias=True).state_dict().items()}
        save_file(state, folder / "2_Dense" / "model.safetensors")
    return folder


_SWITCHES = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_max_tokens", "pooling_mode_lasttoken")

MADE: dict[str, Callable[[Path], Path]] = {
    "sequence-classification": sequence_classification,
    "sequence-classification of qwen2": lambda folder: sequence_classification(folder, "qwen2"),
    "sequence-classification of llama": lambda folder: sequence_classification(folder, "llama"),
    "sequence-classification of experts": lambda folder: sequence_classification(folder, "qwen3_moe"),
    "sequence-classification of a sliding window": sliding_window,
    "sequence-classification of a hybrid": hybrid,
    "reward-model": lambda folder: mlp_head(folder, 1),
    "process-reward-model": lambda folder: mlp_head(folder, 2),
    "value-head": lambda folder: value_head(folder, own_file=False),
    "value-head in a file of its own": lambda folder: value_head(folder, own_file=True),
    "value-head of an adapter": value_head_adapter,
    "reward-head with bias": lambda folder: accelerate_script(folder, bias=True)[0],
    "reward-head of a wrapped model": lambda folder: accelerate_script(folder, bias=False, wrapped=True)[0],
    "lora": lora,
    "openrlhf": openrlhf,
    "multi-attribute": multi_attribute,
    "reranker": reranker,
    "reranker of the demo": trained_reranker,
}

EMBEDDERS: dict[str, Callable[[Path], Path]] = {
    "embedder": embedder,
    "embedder of the mean": lambda folder: embedder(folder, "mean"),
    "embedder of the first token": lambda folder: embedder(folder, "cls"),
    "embedder with a layer": lambda folder: embedder(folder, dense=48),
    "embedder that sees what follows": lambda folder: embedder(folder, "mean", is_causal=False),
}
