"""What a quantization costs in quality: next-token distributions on a fixed text against those of the 16-bit weights.

The two models are never resident together. The quantized one speaks first; then the 16-bit one runs out of the mapped
checkpoint, whose pages are given back layer by layer: it takes the memory of one layer and of the distributions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from qserve.core.schemes import SCHEMES
from qserve.errors import UsageError
from qserve.model.checkpoint_errors import explain
from qserve.model.cpu.activations import exact_activations
from qserve.model.load import LoadedModel
from qserve.model.mapped import MappedFiles
from qserve.model.quality import Distance, QuantQuality
from qserve.planner.plan import Plan

__all__ = ["verify_quant"]

_MAX_TOKENS = 512
# Log-probabilities of the text are kept once, in fp32: 256 tokens of a vocabulary of 152k.
_MAX_KEPT_BYTES = 160 * 1024**2
_ROWS = 16


@torch.no_grad()
def verify_quant(folder: Path, plan: Plan, loaded: LoadedModel) -> QuantQuality:
    """Compare `loaded`, which `plan` quantized from the checkpoint in `folder`, with that checkpoint as it is stored.

    The model must not run anything else meanwhile. Raises UsageError where nothing was quantized while loading: a
    checkpoint that is stored quantized holds nothing to compare with.
    """
    if not plan.quant.in_flight or SCHEMES[plan.quant.scheme].bits >= 16:
        raise UsageError(
            f"--verify-quant compares a model that is quantized while loading with its own 16-bit weights; here the "
            f"scheme is {plan.quant.scheme}, {plan.quant.reason}. Leave it out, or give --quant bnb-int8 or bnb-nf4"
        )
    began_s = time.monotonic()
    ids = _text_ids(loaded)
    quantized = torch.cat([rows.cpu() for rows in _log_probabilities(loaded.model, ids)])
    reference = _reference(folder, plan)
    rounding = _rounding(loaded.model, ids, quantized) if plan.cpu_activations == "int8" else None
    with _one_layer_at_a_time(reference, MappedFiles.of(folder)):
        found = _distance(_log_probabilities(reference, ids), quantized)
    return QuantQuality(
        scheme=plan.quant.scheme,
        reference=str(reference.dtype).removeprefix("torch."),
        num_tokens=len(quantized),
        mean_kl=found.mean_kl,
        worst_kl=found.worst_kl,
        top1_agreement=found.top1_agreement,
        seconds=time.monotonic() - began_s,
        activations=rounding,
    )


def _rounding(model: Any, ids: torch.Tensor, rounded: torch.Tensor) -> Distance:
    """Of what the model says with rounded activations from what it says without."""
    with exact_activations(model):
        return _distance(_log_probabilities(model, ids), rounded)


def _distance(expected: Iterator[torch.Tensor], got: torch.Tensor) -> Distance:
    """Log-probabilities, the first a few rows at a time."""
    kls, agreements, done = [], [], 0
    for rows in expected:
        other = got[done : done + len(rows)].to(rows.device)
        kls.append((rows.exp() * (rows - other)).sum(-1).clamp(min=0).cpu())
        agreements.append((rows.argmax(-1) == other.argmax(-1)).cpu())
        done += len(rows)
    kl, agreement = torch.cat(kls), torch.cat(agreements).float()
    return Distance(float(kl.mean()), float(kl.max()), float(agreement.mean()))


def _text_ids(loaded: LoadedModel) -> torch.Tensor:
    text = resources.files(__package__).joinpath("verify_text.txt").read_text(encoding="utf-8")
    config = loaded.model.config.get_text_config()
    most = min(_MAX_TOKENS, config.max_position_embeddings, max(16, _MAX_KEPT_BYTES // (4 * config.vocab_size)))
    ids: torch.Tensor = loaded.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    return ids[:, :most]


def _log_probabilities(model: Any, ids: torch.Tensor) -> Iterator[torch.Tensor]:
    """[rows, vocabulary] in fp32, a few positions at a time: logits of the whole text would be the largest tensor."""
    # Under accelerate's hooks the embedding may lie nowhere yet; they bring the ids to where it computes.
    device = model.device if model.device.type != "meta" else "cpu"
    hidden = model.base_model(input_ids=ids.to(device), use_cache=False).last_hidden_state[0]
    head = model.get_output_embeddings()
    for rows in hidden.split(_ROWS):
        yield head(rows).float().log_softmax(-1)


def _reference(folder: Path, plan: Plan) -> Any:
    """The checkpoint as it is stored, mapped and not read; it computes on the plan's card where there is one."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype="auto",  # as it is stored: any other would be a copy
            device_map={"": "cpu"},
            local_files_only=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
        )
    except Exception as error:
        raise explain(error, folder, "the 16-bit weights") from error
    model.eval()
    if torch.cuda.is_available() and plan.placement.device_map != "cpu":
        from accelerate import cpu_offload

        cpu_offload(model, torch.device("cuda:0"))
    return model


@contextlib.contextmanager
def _one_layer_at_a_time(model: Any, files: MappedFiles) -> Iterator[None]:
    """After each decoder layer, give back the pages of the file that it was read from."""

    def give_back(module: nn.Module, *_: Any) -> None:
        for tensor in module.parameters():
            files.release(tensor.data)

    layers = model.base_model.layers
    hooks = [layer.register_forward_hook(give_back) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
