"""Kernels are tried before the weights are loaded: a trial's process takes half a GiB of the card for itself.

What it says is kept, so those who choose later (`choose_kernel`, `take_on_cards`, `choose_products`) find it.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig

from qserve.engines.transformers.worker.attention.kernels import Heads, kernel_trials
from qserve.engines.transformers.worker.decoding.choose import operation_trials
from qserve.model.cuda.before_load import cards_of, product_trials_ahead
from qserve.model.load import DTYPES
from qserve.model.placement import skeleton
from qserve.model.trials.ask import tried
from qserve.model.trials.children import Groups
from qserve.planner.plan import Plan

__all__ = ["groups_of", "try_before_loading"]


def try_before_loading(folder: Path, plan: Plan) -> None:
    """On each card that the plan places modules of the checkpoint on. Nothing on a CPU."""
    if torch.cuda.is_available():
        for device in cards_of(plan):
            tried(device, groups_of(folder, plan, device))


def groups_of(folder: Path, plan: Plan, device: torch.device) -> Groups:
    """What a worker asks about kernels while it loads and serves the checkpoint in `folder` on `device`."""
    dtype = DTYPES[plan.dtype]
    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    heads = Heads.of(SimpleNamespace(config=config, dtype=dtype))
    operations = operation_trials(heads, config.get_text_config().hidden_size)
    products = product_trials_ahead(plan, dtype, lambda: skeleton(folder))
    return [kernel_trials(device, heads), *([one] for one in (*operations, *products))]
