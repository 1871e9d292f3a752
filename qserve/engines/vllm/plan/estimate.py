"""The estimate of vLLM at one trial: its terms added up, and what they leave for the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from qserve.core.hardware import Device
from qserve.engines.vllm.plan.terms import cpu, terms_of
from qserve.engines.vllm.plan.terms.safety_margin import SAFETY_MARGIN
from qserve.engines.vllm.plan.terms.sampled_step import SAMPLED_STEP
from qserve.engines.vllm.plan.trial import Trial, cuda_context
from qserve.planner.calibrate import Corrections, corrections_for
from qserve.planner.calibration import Correction
from qserve.planner.plan import DevicePlan
from qserve.planner.term import Column, Term, TermKind

__all__ = ["VllmEstimate"]


@dataclass(frozen=True)
class VllmEstimate:
    """Everything is a sum over the trial's terms.

    The ranks of one stage are alike, so a stage is counted once; the KV cache is what the tightest rank can hold.
    """

    trial: Trial

    @cached_property
    def terms(self) -> tuple[TermKind[Trial], ...]:
        return terms_of(self.trial)

    @cached_property
    def corrections(self) -> Corrections:
        """What earlier runs measured of terms, as far as it holds here."""
        return corrections_for(self.trial.candidate, self.trial.max_num_seqs, self.trial.max_num_batched_tokens)

    @cached_property
    def _stage_bytes(self) -> tuple[tuple[int, ...], ...]:
        """Bytes of every term but the KV cache, by stage."""
        return tuple(
            tuple(kind.corrected_bytes(self.trial, stage, self._correction(kind)) for kind in self.terms)
            for stage in range(self.trial.candidate.pipeline_parallel_size)
        )

    def _correction(self, kind: TermKind[Trial]) -> Correction | None:
        return None if kind.learned is None else self.corrections.get(kind.learned)

    def held_bytes(self, stage: int) -> int:
        """All that a rank of the stage holds beside the KV cache."""
        return sum(self._stage_bytes[stage])

    def charged_bytes(self, stage: int) -> int:
        """What of it the engine takes from the budget of the KV cache."""
        sizes = zip(self.terms, self._stage_bytes[stage], strict=True)
        return sum(num_bytes for kind, num_bytes in sizes if kind.is_charged(self.trial))

    @property
    def has_margin(self) -> bool:
        """Whether a stage leaves something free for uncertain terms."""
        return self._holds(SAFETY_MARGIN)

    @property
    def has_sampling(self) -> bool:
        """Whether a stage leaves something free for sampled steps."""
        return self._holds(SAMPLED_STEP)

    def _holds(self, name: str) -> bool:
        held = [index for index, kind in enumerate(self.terms) if kind.name == name]
        return any(stage[index] for stage in self._stage_bytes for index in held)

    def column_bytes(self, column: Column, stage: int = 0) -> int:
        """Bytes of the terms of a column, the KV cache apart."""
        sizes = zip(self.terms, self._stage_bytes[stage], strict=True)
        return sum(num_bytes for kind, num_bytes in sizes if kind.column == column)

    def kv_budget(self, device: Device, stage: int) -> int:
        """Bytes left for the KV cache on one rank; negative where the model alone is too much.

        requested = total · gpu_memory_utilization, less the charged terms.
        """
        candidate = self.trial.candidate
        fixed = candidate.request.kv_cache_memory_bytes
        if fixed is not None:
            return fixed
        left = int(device.total_bytes * self.trial.gpu_memory_utilization) - self.charged_bytes(stage)
        if not candidate.on_cpu:
            return left
        length = candidate.request.max_model_len or candidate.spec.max_position_embeddings
        return cpu.cache_bytes(left, self.trial.layout.bytes_per_sequence(length))

    @cached_property
    def cache_bytes(self) -> int:
        """KV cache of the tightest rank."""
        return min(self.kv_budget(device, stage) for device, stage in self._ranks())

    @cached_property
    def whole_model_cache_bytes(self) -> int:
        """`cache_bytes` scaled to all layers: a stage holds only its own layers' share of a block."""
        return self.cache_bytes * self.trial.spec.num_hidden_layers // self.trial.most_layers

    @property
    def max_tokens_of_one_sequence(self) -> int:
        return self.trial.layout.max_tokens_of_one_sequence(self.whole_model_cache_bytes)

    def max_concurrency(self, max_model_len: int) -> float:
        return self.trial.layout.max_concurrency(self.whole_model_cache_bytes, max_model_len)

    def logged_tokens(self, max_model_len: int) -> int:
        """What this release logs as "GPU KV cache size"."""
        layout = self.trial.layout
        blocks = layout.num_blocks(self.whole_model_cache_bytes)
        if not self.trial.spec.is_hybrid:
            return blocks * layout.block_tokens
        if self.trial.version.logs_tokens_from_concurrency:
            return int(self.max_concurrency(max_model_len) * max_model_len)
        return blocks // layout.num_groups * layout.block_tokens

    @property
    def slack_bytes(self) -> int:
        """Before 0.21 graphs and context came out of what the share left over: how far they may be less than expected.

        So it is under the second model runner up to 0.28. Logs of those releases started with less left than the
        expected figures need.
        """
        if self.trial.subtracts_cuda_graphs:
            return 0
        context = cuda_context(self.trial.candidate)
        return context.num_bytes - context.low_bytes + self.column_bytes("cuda_graphs") // 2

    @cached_property
    def least_free_bytes(self) -> int:
        """What the fullest card has left; negative where the plan overdraws it."""
        cache = max(0, self.cache_bytes)
        return min(
            device.total_bytes - device.used_by_others_bytes - device.kept_free_bytes - self.held_bytes(stage) - cache
            for device, stage in self._ranks()
        )

    def devices(self) -> tuple[DevicePlan, ...]:
        """Every rank, with its terms in words."""
        terms = [self._terms(stage) for stage in range(self.trial.candidate.pipeline_parallel_size)]
        return tuple(DevicePlan.of(device, terms[stage]) for device, stage in self._ranks())

    def _terms(self, stage: int) -> list[Term]:
        listed = []
        for kind, held in zip(self.terms, self._stage_bytes[stage], strict=True):
            num_bytes = max(0, self.cache_bytes) if kind.column == "kv_cache" else held
            if kind.is_shown(self.trial, num_bytes):
                listed.append(kind.term(self.trial, stage, num_bytes, self._correction(kind)))
        return listed

    def _ranks(self) -> list[tuple[Device, int]]:
        """Card and pipeline stage of every rank, stage by stage."""
        candidate = self.trial.candidate
        return [(device, index // candidate.tensor_parallel_size) for index, device in enumerate(candidate.devices)]
