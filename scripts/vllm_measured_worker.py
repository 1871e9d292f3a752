"""A vLLM-CPU worker that says what it holds, one line of JSON a stage: for scripts/plan_against_engines.py.

vLLM logs no weights on a CPU. `--worker-cls vllm_measured_worker.MeasuredWorker` changes nothing that is computed: it
adds up parameters and buffers when the last weight has been read and before vLLM repacks any of them, and reads its
own private memory (USS) between the stages of start-up.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import psutil
import torch
from vllm.model_executor.model_loader import base_loader
from vllm.v1.worker.cpu_worker import CPUWorker

MARK = "QSERVE-STAGE "


class MeasuredWorker(CPUWorker):
    """CPUWorker with a line on standard error after each stage."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _tell("constructed")

    def init_device(self) -> None:
        super().init_device()
        _tell("device")

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        repack = base_loader.process_weights_after_loading

        def counted(model: torch.nn.Module, *rest: Any) -> None:
            _tell("weights", weights_bytes=_tensor_bytes(model))
            repack(model, *rest)
            _tell("repacked", weights_bytes=_tensor_bytes(model))

        base_loader.process_weights_after_loading = counted
        super().load_model(*args, **kwargs)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        _tell("cache")

    def compile_or_warm_up_model(self) -> Any:
        times = super().compile_or_warm_up_model()
        _tell("warm")
        return times


def _tensor_bytes(model: torch.nn.Module) -> int:
    """Each storage once: tied tensors share theirs."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def _tell(stage: str, **figures: int) -> None:
    memory = psutil.Process().memory_full_info()
    line = {"stage": stage, "uss_bytes": memory.uss, "pss_bytes": memory.pss, "rss_bytes": memory.rss, **figures}
    print(MARK + json.dumps(line), file=sys.stderr, flush=True)
