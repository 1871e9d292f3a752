"""What is on a card and in no tensor: libraries that vLLM charges, and the CUDA context that it does not."""

from __future__ import annotations

from qserve.core.hardware import Device
from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.backends import fuses_all_reduce
from qserve.engines.vllm.plan.terms.retained import counts_formula
from qserve.engines.vllm.plan.trial import Trial, cuda_context
from qserve.planner.constants import Constant
from qserve.planner.memory.allocator import cublas_workspace
from qserve.planner.term import MeasuredKind
from qserve.units import format_bytes

__all__ = ["CudaContext", "HostProcesses", "NonTorch"]


class NonTorch(MeasuredKind[Trial]):
    name, column, learned = "non-torch", "runtime", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return _constant(sizes).num_bytes

    def formula(self, sizes: Trial, stage: int) -> str:
        libraries = f"driver libraries, cuBLAS, NCCL over {sizes.candidate.num_ranks} rank(s)"
        if not sizes.penalty_bytes or not sizes.version.charges_what_is_gone:
            return libraries
        return f"{libraries} + {counts_formula(sizes)} = {format_bytes(sizes.penalty_bytes)}"

    def source(self, sizes: Trial) -> str:
        return _constant(sizes).source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        return _constant(sizes).low_bytes, _constant(sizes).high_bytes

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return True


def _constant(sizes: Trial) -> Constant:
    spec, card = sizes.spec, sizes.device
    fuses = fuses_all_reduce(sizes.candidate)
    kept = sizes.penalty_bytes if sizes.version.charges_what_is_gone else 0
    if card.shares_ram and card.compute_capability is not None:  # vLLM asks CUDA only, not HIP
        base = constants.NON_TORCH_INTEGRATED
    elif sizes.penalty_bytes and (sizes.candidate.num_ranks == 1 or not (spec.is_hybrid or fuses)):
        base = constants.non_torch_v2(sizes.version.release, spec.is_hybrid)
        kept += cublas_workspace(card) if sizes.version.charges_what_is_gone else 0
    else:
        ranks, capability = sizes.candidate.num_ranks, card.compute_capability
        base = constants.non_torch(sizes.version.release, ranks, fuses, spec.is_hybrid, capability)
    loaded = constants.FP4_KERNELS_BYTES if sizes.has_fp4_kernels else 0
    high = base.high_bytes + kept + loaded * 4 // 3
    if sizes.has_fp4_experts:  # five starts, which agree to 0.15 GiB
        kept += loaded
    return Constant(base.num_bytes + kept, base.low_bytes + kept - loaded * sizes.has_fp4_experts, high, base.source)


class HostProcesses(MeasuredKind[Trial]):
    """Where the card's memory is the RAM, vLLM's processes are in it: before vLLM takes its first look at it."""

    name, column = "host processes", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return host_processes_bytes(sizes.device)

    def formula(self, sizes: Trial, stage: int) -> str:
        return "API server and engine core before the model, in the RAM that this card shares"

    def source(self, sizes: Trial) -> str:
        return constants.PYTHON_VLLM_CPU_JOINED.source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        if not num_bytes:
            return 0, 0
        return constants.PYTHON_VLLM_CPU_JOINED.low_bytes, 2 * constants.PYTHON_VLLM_CPU_JOINED.high_bytes

    def is_charged(self, sizes: Trial) -> bool:
        return False


def host_processes_bytes(card: Device) -> int:
    """vLLM's API server and engine core, where the card's memory is all of the RAM (of AMD's it is a part); else 0."""
    is_the_ram = card.shares_ram and card.compute_capability is not None
    return constants.PYTHON_VLLM_CPU_JOINED.num_bytes if is_the_ram else 0


class CudaContext(MeasuredKind[Trial]):
    name, column = "CUDA context", "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return cuda_context(sizes.candidate).num_bytes

    def formula(self, sizes: Trial, stage: int) -> str:
        return "outside vLLM's own account, but on the card"

    def source(self, sizes: Trial) -> str:
        return cuda_context(sizes.candidate).source

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        context = cuda_context(sizes.candidate)
        return context.low_bytes, context.high_bytes

    def is_charged(self, sizes: Trial) -> bool:
        return False
