"""The truth that scores are held against: plain transformers, float32, one text at a time, nothing of the scorer.

Where transformers has a class of its own for the checkpoint, its forward gives the values: where it reads a text is the
class's own business. Other formats have no class there; of them the body is the library's, and the head is read where
the format says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from qserve.errors import BrokenCheckpoint
from qserve.hub.served_folder import clean_folder
from qserve.model.checkpoint_errors import explain
from qserve.model.load import load_tokenizer
from qserve.planner.plan import Plan, QuantChoice
from qserve.reward.checkpoints import RewardCheckpoint
from qserve.reward.items import ScoreItem
from qserve.reward.load import LoadedReward, is_plain_folder, load_reward_model
from qserve.reward.scoring.pooling import PoolingRule
from qserve.reward.settings import RewardSettings

__all__ = ["PlainScorer", "plain_scorer"]

Forward = Callable[[list[int]], torch.Tensor]


@dataclass(frozen=True)
class PlainScorer:
    """A model in float32 and the library's own attention; see `plain_scorer`. `source` says whose forward it is."""

    tokenizer: Any
    source: str
    forward: Forward

    @torch.inference_mode()
    def values(self, token_ids: Sequence[int]) -> list[float]:
        """The head's values of a text, in the order of its labels. Raises TextRefused where nothing is read of it."""
        values: list[float] = self.forward(list(token_ids)).float().tolist()
        return values


def plain_scorer(checkpoint: RewardCheckpoint, plan: Plan, settings: RewardSettings) -> PlainScorer:
    """The model is loaded anew in float32: 4 bytes a parameter beside what is loaded already.

    With the user's own --pooling there is no class that reads so.
    """
    whole = replace(plan, dtype="float32", quant=QuantChoice("fp32", plan.quant.checkpoint))
    by_class = checkpoint.class_reads and settings.pooling is None
    if by_class and _is_read_by_library(checkpoint, plan):
        return _of_class(_by_library(checkpoint, plan), load_tokenizer(checkpoint.tokenizer))
    loaded = _loaded(checkpoint, whole)
    if by_class and type(loaded.body.config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING:
        return _of_class(_around(loaded), loaded.tokenizer)
    rule = PoolingRule.of(checkpoint, settings, loaded.tokenizer.eos_token_id)
    return PlainScorer(loaded.tokenizer, f"transformers' body, read at {rule.name}", _read_by_rule(loaded, rule))


def _is_read_by_library(checkpoint: RewardCheckpoint, plan: Plan) -> bool:
    """Not so where a plan spreads the model, and where the weights lie in a form that transformers does not load."""
    folder = _of_library(checkpoint)
    if isinstance(plan.placement.device_map, dict) or "quantization_config" in checkpoint.config:
        return False
    if checkpoint.adapter is None and not is_plain_folder(checkpoint):
        return False
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING


def _of_library(checkpoint: RewardCheckpoint) -> Path:
    """The folder that transformers loads: of an adapter the one of its base."""
    return clean_folder(checkpoint.path if checkpoint.base is None or checkpoint.adapter is None else checkpoint.base)


def _of_class(model: Any, tokenizer: Any) -> PlainScorer:
    kind = type(model.get_base_model() if hasattr(model, "get_base_model") else model)
    return PlainScorer(tokenizer, f"transformers' {kind.__name__}", _forward_of(model))


def _loaded(checkpoint: RewardCheckpoint, plan: Plan) -> LoadedReward:
    loaded = load_reward_model(checkpoint, plan)
    loaded.body.set_attn_implementation("sdpa")
    return loaded


def _read_by_rule(loaded: LoadedReward, rule: PoolingRule) -> Forward:
    def forward(token_ids: list[int]) -> torch.Tensor:
        pooled = rule.pooled(ScoreItem(token_ids))
        ids = torch.tensor([token_ids], device=loaded.device)
        hidden = loaded.body(input_ids=ids, use_cache=False).last_hidden_state[0].float()
        read = hidden.mean(0) if pooled.mean else hidden[pooled.positions[-1]]
        values: torch.Tensor = loaded.head(read[None].to(next(loaded.head.parameters()).device))[0]
        return values

    return forward


def _forward_of(model: Any) -> Forward:
    device = model.get_input_embeddings().weight.device

    def forward(token_ids: list[int]) -> torch.Tensor:
        values: torch.Tensor = model(input_ids=torch.tensor([token_ids], device=device), use_cache=False).logits[0]
        return values

    return forward


def _by_library(checkpoint: RewardCheckpoint, plan: Plan) -> Any:
    """The class as any script loads it; of an adapter its base with the adapter on it, not merged."""
    folder = _of_library(checkpoint)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # a base has no head yet, of which transformers warns
    transformers_logging.disable_progress_bar()  # the command has a line of its own
    try:
        model, report = AutoModelForSequenceClassification.from_pretrained(
            folder,
            dtype=torch.float32,
            num_labels=checkpoint.head.num_labels,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            device_map=plan.placement.device_map,
        )
    except Exception as error:
        raise explain(error, checkpoint.path, "the weights") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    if checkpoint.adapter is None:
        if report["missing_keys"]:
            raise BrokenCheckpoint(f"{folder} lacks {sorted(report['missing_keys'])[0]}, which its class calls for")
        return model.eval()
    from peft import PeftModel  # an extra, which the adapter's own start has asked for

    model.config.get_text_config().pad_token_id = checkpoint.pad_token_id
    return PeftModel.from_pretrained(model, str(checkpoint.adapter)).eval()


def _around(loaded: LoadedReward) -> Any:
    """The class over a body and a head that are loaded already."""
    config = loaded.body.config
    config.num_labels = loaded.checkpoint.head.num_labels
    with torch.device("meta"):
        model = AutoModelForSequenceClassification.from_config(config)
    setattr(model, model.base_model_prefix, loaded.body)
    (linear,) = [module for module in loaded.head.modules() if isinstance(module, torch.nn.Linear)]
    model.score = linear
    return model.eval()
