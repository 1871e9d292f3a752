"""The terms of vLLM's memory on a card and on a CPU, in the order of --explain. A new one is a class and a line."""

from __future__ import annotations

from qserve.engines.vllm.plan.terms.activations import Activations
from qserve.engines.vllm.plan.terms.adapters import AdapterBuffers
from qserve.engines.vllm.plan.terms.cpu import CpuActivations, CpuKvCache, Python, Repacking
from qserve.engines.vllm.plan.terms.graphs import CudaGraphs
from qserve.engines.vllm.plan.terms.kv import KvCache
from qserve.engines.vllm.plan.terms.retained import Penalties, RetainedBuffers, RetainedSegment
from qserve.engines.vllm.plan.terms.runtime import CudaContext, HostProcesses, NonTorch
from qserve.engines.vllm.plan.terms.safety_margin import SafetyMargin
from qserve.engines.vllm.plan.terms.sampled_step import SampledStep
from qserve.engines.vllm.plan.terms.sleep import SleepPools
from qserve.engines.vllm.plan.terms.weights import Weights
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.term import TermKind

__all__ = ["CARD_TERMS", "CPU_TERMS", "terms_of"]

_BESIDE_THE_CACHE: tuple[TermKind[Trial], ...] = (
    Activations(),
    CudaGraphs(),
    NonTorch(),
    Penalties(),
    RetainedBuffers(),
    RetainedSegment(),
    SleepPools(),
)
CARD_TERMS: tuple[TermKind[Trial], ...] = (
    Weights(),
    AdapterBuffers(),
    KvCache(),
    *_BESIDE_THE_CACHE,
    SafetyMargin(_BESIDE_THE_CACHE),
    SampledStep(),
    CudaContext(),
    HostProcesses(),
)
CPU_TERMS: tuple[TermKind[Trial], ...] = (
    Weights(),
    AdapterBuffers(),
    CpuKvCache(),
    CpuActivations(),
    Repacking(),
    Python(),
)


def terms_of(trial: Trial) -> tuple[TermKind[Trial], ...]:
    """Those of the device that the candidate runs on."""
    return CPU_TERMS if trial.candidate.on_cpu else CARD_TERMS
