"""Kernels that a worker asks for are tried before the weights are loaded (`model/cuda/before_load.py`)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from transformers import AutoConfig

from qserve.engines.transformers.worker.attention.kernels import Heads, kernel_trials
from qserve.engines.transformers.worker.decoding.check import operation_trials
from qserve.engines.transformers.worker.decoding.fused import GATE_UP, QKV
from qserve.engines.transformers.worker.sampling.nucleus import draw_trial
from qserve.model.checkpoint_errors import explain
from qserve.model.cuda.before_load import try_before_loading
from qserve.model.load import DTYPES
from qserve.model.placement import skeleton
from qserve.model.trials.children import Groups
from qserve.planner.plan import Plan

__all__ = ["try_kernels_of"]


def try_kernels_of(folder: Path, plan: Plan) -> None:
    """All that `choose_kernel`, `take_on_cards`, `choose_draw` and `choose_products` will ask of the model in `folder`.

    Raises BrokenCheckpoint where its config.json can't be read.
    """
    dtype = DTYPES[plan.dtype]
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # as loading would say it
        raise explain(error, folder, "the configuration") from error
    heads, text = Heads.of(SimpleNamespace(config=config, dtype=dtype)), config.get_text_config()

    def others(device: torch.device) -> Groups:
        alone = [*operation_trials(heads, text.hidden_size), draw_trial(text.vocab_size)]
        return [*kernel_trials(device, heads), *([one] for one in alone)]

    try_before_loading(plan, dtype, partial(skeleton, folder), others, (QKV, GATE_UP))
