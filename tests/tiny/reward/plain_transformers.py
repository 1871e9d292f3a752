"""What each checkpoint scores in plain transformers, float32, one text at a time, by the code of its own format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2ForCausalLM,
    Qwen3_5TextModel,
)


class Plain:
    """`values(ids)`: the head's output at every token, [tokens, labels]."""

    def __init__(self, kind: str, path: Path) -> None:
        self.kind, self.path = kind.partition(" ")[0], path
        folder = path.parent / "base" if path.suffix or path.name == "adapter" else path
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._folder = folder
        self._make = getattr(self, "_" + self.kind.replace("-", "_"))()

    @torch.no_grad()
    def values(self, ids: list[int]) -> torch.Tensor:
        result: torch.Tensor = self._make(torch.tensor([ids]))[0].float()
        return result

    def _sequence_classification(self) -> Any:
        if "hybrid" in str(self.path):
            state = load_file(self.path / "model.safetensors")
            body = Qwen3_5TextModel.from_pretrained(self.path, dtype=torch.float32).eval()
            return lambda ids: body(ids).last_hidden_state @ state["score.weight"].T
        model = AutoModelForSequenceClassification.from_pretrained(self.path, dtype=torch.float32).eval()
        return lambda ids: model.score(model.model(ids).last_hidden_state)

    def _multi_attribute(self) -> Any:
        """The mean of the labels, which is the reward where nobody weighs them."""
        model = AutoModelForSequenceClassification.from_pretrained(self.path, dtype=torch.float32).eval()
        return lambda ids: model.score(model.model(ids).last_hidden_state).mean(-1, keepdim=True)

    def _reranker(self) -> Any:
        """log P(yes) - log P(no) of the next token, by the whole language model."""
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()
        no, yes = self.tokenizer.convert_tokens_to_ids(model.config.classifier_from_token)

        def run(ids: torch.Tensor) -> torch.Tensor:
            logprobs = model(ids).logits.log_softmax(-1)
            return logprobs[..., yes : yes + 1] - logprobs[..., no : no + 1]

        return run

    def _lora(self) -> Any:
        base = AutoModelForSequenceClassification.from_pretrained(self._folder, num_labels=1, dtype=torch.float32)
        model = PeftModel.from_pretrained(base, str(self.path)).eval()  # not merged
        inner = model.base_model.model
        return lambda ids: inner.score(inner.model(ids).last_hidden_state)

    def _mlp(self) -> Any:
        state = load_file(self.path / "model.safetensors")
        body = AutoModel.from_pretrained(self.path, dtype=torch.float32).eval()

        def run(ids: torch.Tensor) -> torch.Tensor:
            hidden = body(ids).last_hidden_state
            inner = torch.relu(hidden @ state["score.0.weight"].T + state["score.0.bias"])
            return inner @ state["score.2.weight"].T + state["score.2.bias"]

        return run

    _reward_model = _process_reward_model = _mlp

    def _value_head(self) -> Any:
        if self.path.name == "adapter":
            base = AutoModelForCausalLM.from_pretrained(self.path.parent / "base", dtype=torch.float32)
            model = PeftModel.from_pretrained(base, str(self.path)).eval().base_model.model  # not merged
        else:
            model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32).eval()
        own = self.path / "value_head.safetensors"
        head = load_file(own if own.exists() else self.path / "model.safetensors")
        weight, bias = head["v_head.summary.weight"], head["v_head.summary.bias"]
        return lambda ids: model(ids, output_hidden_states=True).hidden_states[-1] @ weight.T + bias

    def _reward_head(self) -> Any:
        data = torch.load(self.path, weights_only=True)
        state = {name.removeprefix("module."): tensor for name, tensor in data.get("model_state_dict", data).items()}
        model = Qwen2ForCausalLM.from_pretrained(self._folder, dtype=torch.float32).eval()
        model.load_state_dict(
            {n.removeprefix("base_model."): t for n, t in state.items() if n.startswith("base_model")}
        )
        bias = state.get("reward_head.bias", torch.zeros(1))
        return lambda ids: model.model(ids).last_hidden_state @ state["reward_head.weight"].T + bias

    def _openrlhf(self) -> Any:
        state = load_file(self.path / "model.safetensors")
        body = AutoModel.from_pretrained(self.path, dtype=torch.float32).eval()
        return lambda ids: body(ids).last_hidden_state @ state["value_head.weight"].T
