"""A model of random weights that stays loaded from row to row: what it holds, how fast it decodes and reads prompts.

Rows are measured one by one, so that each is written before the next one runs. All are medians of three, after a full
batch of the same size that does not count.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
import time
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from bench.gpu_steps.machine import Machine, config_folder, config_of
from bench.gpu_steps.order import VARIANTS
from bench.gpu_steps.planned import PlannedSpeed, planned_terms
from bench.gpu_steps.running import GREEDY, SAMPLED, batching, random_prompts, wave
from qserve.core.dimensions import tensors_of
from qserve.core.model_spec import ModelSpec
from qserve.core.schemes import SCHEMES
from qserve.engines.transformers.kernels.refusals import LAYER_LAUNCHES
from qserve.engines.transformers.worker.code_path import code_path
from qserve.engines.transformers.worker.decoding.choose import Layers
from qserve.model.load import load
from qserve.planner import Plan
from qserve.planner.speed.terms.kernels import experts_read

__all__ = ["LoadedShape", "is_as_planned", "work_of"]

_TIMES = 3
_WARM_UP_TOKENS = 8
_PROFILED_STREAMS, _PROFILED_STEPS = 8, 3


class LoadedShape:
    """`model` in `scheme` on `machine`, planned for `streams` of `max_model_len`; `close` gives all of it back."""

    def __init__(self, machine: Machine, model: str, scheme: str, streams: int, max_model_len: int) -> None:
        """Raises what loading raises; a plan that does not fit is `why_not`."""
        self.machine, self.model_id, self.scheme = machine, model, scheme
        self.spec = ModelSpec.from_config(config_of(model), model)
        self.plan = machine.plan(model, quant=scheme, max_model_len=max_model_len, max_num_seqs=streams)
        self.planned = PlannedSpeed(self.plan, self.spec, machine.hardware())
        self.why_not = None if self.plan.fits else self.plan.why_not
        self._runner, self._stack = asyncio.Runner(), ExitStack()
        self._variant = ""
        self._batching: AbstractAsyncContextManager[Any] | None = None
        self._batcher: Any = None
        if self.why_not:
            return
        folder = config_folder(model)
        self._before = machine.allocated_bytes()
        self._outside_before = machine.outside_bytes()
        begun = time.perf_counter()
        self.loaded = load(folder, self.plan, load_format="dummy")
        self.load_s = time.perf_counter() - begun
        self.weights_bytes = machine.allocated_bytes() - self._before if machine.is_card else self.loaded.weights_bytes
        shutil.rmtree(folder)

    @property
    def path(self) -> dict[str, Any]:
        """Which code runs its steps."""
        return code_path(self.loaded.model, self._batcher).as_dict()

    def memory(self) -> dict[str, Any]:
        """Every term, planned and measured, after the largest step that the plan counts with."""
        batcher = self._run_as(VARIANTS[0])
        with_cache = self.machine.allocated_bytes()
        self.machine.reset_peak()
        workload = self.plan.workload
        length = max(1, min(workload.max_num_batched_tokens // workload.max_num_seqs, workload.max_model_len - 8))
        self._wave(workload.max_num_seqs, length, 4, seed=0)
        peak, outside = self.machine.peak_bytes(), self.machine.outside_bytes()
        graphs = batcher.graph_memory
        measured = {
            "weights_bytes": self.weights_bytes,
            "kv_cache_bytes": batcher.kv_cache_bytes,
            "activations_bytes": max(0, peak - with_cache - (graphs.num_bytes - graphs.outside_bytes)),
            "cuda_graphs_bytes": graphs.num_bytes,
            "runtime_bytes": max(0, outside - graphs.outside_bytes - self.plan.devices[0].used_by_others_bytes),
            "kv_cache_tokens": batcher.kv_cache_tokens,
        }
        planned = planned_terms(self.plan)
        return {
            "planned": planned,
            "measured": measured,
            "outside_before_bytes": self._outside_before,
            "load_s": self.load_s,
            "path": self.path,
            "ok": is_as_planned(planned, measured) if self.machine.is_card else None,
        }

    def decode(self, streams: int, prompt_len: int, new_tokens: int, variant: str, sampled: bool) -> dict[str, Any]:
        """Milliseconds of a step and tokens a second of so many streams, after `prompt_len` tokens each."""
        self._run_as(variant)
        self._wave(streams, prompt_len, _WARM_UP_TOKENS, seed=10, sampled=sampled)
        taken = [self._wave(streams, prompt_len, new_tokens, seed=20 + n, sampled=sampled) for n in range(_TIMES)]
        rates = [one.rest_tokens / one.rest_s for one in taken]
        rate = statistics.median(rates)
        context = prompt_len + new_tokens / 2
        return {
            "planned": {"ms_per_step": self.planned.step_ms(streams, context)},
            "measured": {
                "ms_per_step": 1000 * streams / rate,
                "tokens_per_s": rate,
                "fastest": max(rates),
                "slowest": min(rates),
            },
            "bytes_per_step": work_of(self.plan, streams, int(context))[0],
            "layers": self.spec.num_hidden_layers,
            "layer_launches": LAYER_LAUNCHES,
            "graphs_bytes": self._batcher.graph_memory.num_bytes,
            "path": self.path,
            "ok": self._is_as_intended(variant),
        }

    def prompts(self, count: int, prompt_len: int) -> dict[str, Any]:
        """Seconds until the last of `count` prompts, sent at once, has its first token."""
        self._run_as(VARIANTS[0])
        self._wave(count, prompt_len, 1, seed=30)
        seconds = statistics.median(self._wave(count, prompt_len, 1, seed=31 + n).first_s for n in range(_TIMES))
        return {
            "planned": {"ms": self.planned.first_tokens_ms(count, prompt_len)},
            "measured": {"ms": 1000 * seconds, "tokens_per_s": count * prompt_len / seconds},
            "flop": work_of(self.plan, 1, 1)[1] * count * prompt_len,
            "path": self.path,
            "ok": self._is_as_intended(VARIANTS[0]),
        }

    def profile(self) -> dict[str, Any]:
        """Kernels of three decoding steps by their time: {"kernels": [{"name", "calls", "us"}]}."""
        self._run_as(VARIANTS[0])
        streams = min(_PROFILED_STREAMS, self.plan.workload.max_num_seqs)
        self._wave(streams, 16, _WARM_UP_TOKENS, seed=40)
        activity = torch.profiler.ProfilerActivity
        kinds = [activity.CUDA] if self.machine.is_card else [activity.CPU]
        with torch.profiler.profile(activities=kinds) as found:
            self._wave(streams, 16, 1 + _PROFILED_STEPS, seed=41)
        rows = [{"name": one.key[:90], "calls": one.count, "us": float(_own_us(one))} for one in found.key_averages()]
        rows.sort(key=lambda row: -row["us"])
        return {"streams": streams, "steps": _PROFILED_STEPS, "kernels": rows[:40], "ok": True}

    def close(self) -> None:
        """Nothing of it stays on the device."""
        self._stop()
        self._runner.close()
        self.__dict__.pop("loaded", None)
        self.machine.release()

    def _run_as(self, variant: str) -> Any:
        """The batcher of `variant`, started anew where another one runs."""
        if variant == self._variant:
            return self._batcher
        self._stop()
        plan = self.plan
        if variant == VARIANTS[1]:
            plan = replace(plan, devices=tuple(replace(one, cuda_graphs_bytes=0) for one in plan.devices))
        if variant == VARIANTS[2]:
            target = "qserve.engines.transformers.worker.decoding.stages.choose_layers"
            self._stack.enter_context(mock.patch(target, lambda model: Layers(None, None)))
        self.loaded.model.set_attn_implementation(self.loaded.attention)  # a batcher left its own
        self._batching = batching(self.loaded.model, plan)
        self._batcher = self._runner.run(self._batching.__aenter__())
        self._variant = variant
        return self._batcher

    def _stop(self) -> None:
        if self._batching is not None:
            self._runner.run(self._batching.__aexit__(None, None, None))
        self._stack.close()
        self._variant, self._batching, self._batcher = "", None, None
        self.machine.release()

    def _wave(self, streams: int, prompt_len: int, new_tokens: int, seed: int, sampled: bool = False) -> Any:
        vocab = self.loaded.model.config.get_text_config().vocab_size
        prompts = random_prompts(streams, prompt_len, vocab, seed=1000 * streams + seed)
        return self._runner.run(wave(self._batcher, prompts, new_tokens, SAMPLED if sampled else GREEDY))

    def _is_as_intended(self, variant: str) -> bool | None:
        """On a card no kernel of ours was refused; of the variants that leave them out nothing is asked."""
        is_asked = self.machine.is_card and variant == VARIANTS[0]
        return code_path(self.loaded.model, self._batcher).is_as_intended if is_asked else None


def is_as_planned(planned: dict[str, int], measured: dict[str, int]) -> bool:
    """Within 3 % on weights and 5 % on everything but graphs, which are captured as sizes are met."""
    terms = ("weights_bytes", "kv_cache_bytes", "activations_bytes", "runtime_bytes")
    wanted, taken = (sum(figures[term] for term in terms) for figures in (planned, measured))
    weights_off = abs(planned["weights_bytes"] - measured["weights_bytes"]) / measured["weights_bytes"]
    return weights_off <= 0.03 and abs(wanted - taken) / taken <= 0.05


def _own_us(event: Any) -> float:
    """torch renamed it when other devices came."""
    found = getattr(event, "self_device_time_total", 0) or getattr(event, "self_cuda_time_total", 0)
    return found or event.self_cpu_time_total


def work_of(plan: Plan, streams: int, context_len: int) -> tuple[int, float]:
    """(bytes that a decoding step reads, operations of a prompt's token).

    A step reads every weight but the embedding table, of which it looks up rows (a tied one is read by the head), and
    the keys and values of all streams; of experts those that so many streams have in the mean. A prompt's token takes
    two operations a weight of the layers, and of its experts; attention and the head, which sees the last token alone,
    are left out, so that the share is rather too low than too high.
    """
    config = config_of(plan.model.id)
    spec = ModelSpec.from_config(config, plan.model.id)
    tensors = tensors_of(spec)
    table = sum(tensor.nbytes for tensor in tensors if tensor.role == "embedding")
    looked_up = 0 if spec.tie_word_embeddings else table
    inside = sum(tensor.num_elements for tensor in tensors if tensor.role not in ("embedding", "lm_head"))
    weights = sum(device.weights_bytes for device in plan.devices) - looked_up
    if spec.moe is not None:
        num, top = spec.moe.num_experts, spec.moe.num_experts_per_tok
        experts = sum(tensor.num_elements for tensor in tensors if tensor.role == "expert")
        unread = experts * (1 - experts_read(num, top, streams, 1.0) / num)
        weights -= round(unread * SCHEMES[plan.quant.scheme].bits / 8)
        inside -= round(experts * (1 - top / num))
    return weights + streams * context_len * plan.model.kv_bytes_per_token, 2.0 * inside
