"""What norms in fp32 add to the activations of a layer whose matrices bitsandbytes holds: real modules on a CPU.

Its layers compute in 16 bit, and return the width that they are given (bitsandbytes/nn/modules.py, Linear4bit.forward:
.to(inp_dtype)); here a layer of torch that does so stands for them, since they need a card.
"""

from __future__ import annotations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

from qserve.planner.training.training_constants import LAYER_BYTES

SHAPE = {
    "hidden_size": 96,
    "intermediate_size": 208,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 64,
    "pad_token_id": 0,
}
TOKENS = 120
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


class _Packed(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            made = nn.functional.linear(inputs.to(torch.bfloat16), self.weight, self.bias)
        return made.to(inputs.dtype)


def _kept(family: str, layers: int, targets: str | list[str], *, fp32_norms: bool) -> int:
    """Bytes that are saved for the backward pass, weights and their 16-bit casts aside."""
    config = {"qwen2": Qwen2Config, "qwen3": Qwen3Config}[family](num_hidden_layers=layers, **SHAPE)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
    for name, module in model.named_modules():
        if type(module) is nn.Linear and ".layers." in name:
            module.__class__ = _Packed
        if fp32_norms and "norm" in name:
            module.float()
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, task_type="CAUSAL_LM"))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    shapes = {tuple(parameter.shape[::-1]) for parameter in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and tuple(tensor.shape) not in shapes:
            storages[storage.data_ptr()] = storage
        return tensor

    ids = torch.randint(1, 64, (1, TOKENS))
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16):
        model(input_ids=ids, use_cache=False).logits.float().sum()
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("targets", ["all-linear", ATTENTION])
def test_gate_up_and_product_are_twice_as_wide(family: str, targets: str | list[str]) -> None:
    plain, wide = (
        (_kept(family, 4, targets, fp32_norms=norms) - _kept(family, 2, targets, fp32_norms=norms)) / 2
        for norms in (False, True)
    )
    assert wide - plain == TOKENS * LAYER_BYTES.fp32_intermediate * SHAPE["intermediate_size"]
