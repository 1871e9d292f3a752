"""Every precision on the device against float32 on the CPU: the bundled demo model, whose weights mean something."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from bench.gpu_steps.machine import Machine
from qserve.demo import chat_model_path
from qserve.errors import MissingExtra
from qserve.hub import resolve
from qserve.model.load import load
from qserve.planner import PlanRequest, make_plan

__all__ = ["MOST_KL", "quality_row"]

# Mean KL divergence to float32, in nats, that is well for the demo model. On a CPU it is a third of that, or less.
MOST_KL = {
    "fp32": 1e-6,
    "bf16": 0.003,
    "fp16": 0.0003,
    "bnb-int8": 0.01,
    "bnb-nf4": 0.3,
    "bnb-nf4-single": 0.3,
    "bnb-fp4": 0.5,
}
_PROMPTS = (
    "The capital of the country is a city that lies on a river. Add 17 and 25, then reverse the word planner.",
    "Write the numbers from one to ten, in words, and say which of them are even.",
    "<|im_start|>user\nWhat is 12 times 7?<|im_end|>\n<|im_start|>assistant\n",
)


def quality_row(machine: Machine, scheme: str) -> dict[str, Any]:
    """`scheme` (of MOST_KL): mean and worst KL, agreement of the likeliest token, and a verdict."""
    try:
        got = _log_probabilities(machine, scheme)
    except MissingExtra as error:
        return {"ok": None, "skipped": str(error)}
    reference = _reference()
    kl = (reference.exp() * (reference - got)).sum(-1).clamp(min=0)
    return {
        "mean_kl": float(kl.mean()),
        "worst_kl": float(kl.max()),
        "top1_agreement": float((reference.argmax(-1) == got.argmax(-1)).float().mean()),
        "tokens": len(kl),
        "ok": bool(kl.mean() <= MOST_KL[scheme]),
    }


@cache
def _reference() -> torch.Tensor:
    """float32 on the CPU."""
    return _log_probabilities(Machine(torch.device("cpu")), "fp32")


@torch.no_grad()
def _log_probabilities(machine: Machine, scheme: str) -> torch.Tensor:
    """[tokens, vocabulary] in float32, on the CPU."""
    request = PlanRequest(engine="transformers", quant=scheme, max_model_len=512)
    plan = make_plan(resolve("demo"), machine.hardware(), request)
    loaded = load(chat_model_path(), plan)
    rows = []
    for text in _PROMPTS:
        ids = loaded.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
        logits = loaded.model(ids.to(loaded.model.device), use_cache=False).logits[0]
        rows.append(logits.float().log_softmax(-1).cpu())
    del loaded
    machine.release()
    return torch.cat(rows)
