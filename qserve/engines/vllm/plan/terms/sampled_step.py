"""A step whose every sequence is sampled: what it takes beyond the profile run, outside of vLLM's share of the card."""

from __future__ import annotations

from qserve.engines.vllm.plan import constants
from qserve.engines.vllm.plan.terms.activations import Activations
from qserve.engines.vllm.plan.trial import Trial
from qserve.planner.term import TermKind
from qserve.units import format_bytes

__all__ = ["SAMPLED_STEP", "SampledStep"]

SAMPLED_STEP = "sampled step"
_ACTIVATION_BYTES = 2


class SampledStep(TermKind[Trial]):
    """Logits in fp32, penalties, top-k and top-p, log-probabilities of S rows over the vocabulary.

    The profile run leaves part of that out: the second runner up to 0.32 samples greedily in it, the first one without
    penalties and log-probabilities. vLLM gives the rest to its cache, so the step must fit into what the share of the
    card leaves free, beside all that others hold there. Nothing where a model fits only without it
    (`Trial.keeps_sampling`).
    """

    name, column = SAMPLED_STEP, "runtime"

    def num_bytes(self, sizes: Trial, stage: int) -> int:
        return _beyond_profile(sizes, stage) if sizes.keeps_sampling else 0

    def formula(self, sizes: Trial, stage: int) -> str:
        kept = _top_k_rows(sizes)
        held = f" + {format_bytes(kept)} kept for top-k" if kept else ""
        left = "" if sizes.keeps_sampling else "; it does not fit beside the rest"
        return (
            f"{_bytes_an_entry(sizes)}·{_rows(sizes)}·{sizes.spec.vocab_size} + "
            f"2·{sizes.max_num_batched_tokens}·{sizes.spec.hidden_size}, less the profiled activations{held}{left}"
        )

    def source(self, sizes: Trial) -> str:
        if sizes.version.runs_model_runner_v2(sizes.spec):
            return "vllm 0.32 v1/worker/gpu/sample/sampler.py, apply_sampling_params; topk_topp_triton.py"
        return (
            "vllm 0.32 v1/sample/sampler.py: live tensors of penalties, top-p and log-probabilities, counted on a CPU"
        )

    def band(self, sizes: Trial, num_bytes: int) -> tuple[int, int]:
        """A batch of greedy requests needs nothing of it."""
        last = sizes.candidate.pipeline_parallel_size - 1
        return 0, num_bytes if sizes.keeps_sampling else _beyond_profile(sizes, last)

    def is_charged(self, sizes: Trial) -> bool:
        return False

    def is_shown(self, sizes: Trial, num_bytes: int) -> bool:
        return self.band(sizes, num_bytes)[1] > 0


def _beyond_profile(sizes: Trial, stage: int) -> int:
    """0 on all stages of a pipeline but the last, which samples."""
    is_last = stage == sizes.candidate.pipeline_parallel_size - 1
    each = _bytes_an_entry(sizes)
    if not is_last or not each:
        return 0
    hidden = sizes.max_num_batched_tokens * sizes.spec.hidden_size * _ACTIVATION_BYTES
    step = each * _rows(sizes) * sizes.spec.vocab_size + hidden + constants.ACTIVATION_BASE.num_bytes
    return max(0, step - Activations().num_bytes(sizes, stage)) + _top_k_rows(sizes)


def _bytes_an_entry(sizes: Trial) -> int:
    """Of a row's vocabulary entry at the step's peak; 0 where the profile run has it all, or nobody looked."""
    version, spec = sizes.version, sizes.spec
    if spec.head.kind == "score" or version.profiles_sampled_steps or version.is_older_than_driven:
        return 0
    if not version.runs_model_runner_v2(spec):
        return constants.SAMPLED_BYTES_FIRST_RUNNER
    return constants.SAMPLED_BYTES_FLASHINFER if sizes.samples_by_flashinfer else constants.SAMPLED_BYTES


def _rows(sizes: Trial) -> int:
    """A row for each sequence, and each drafted token."""
    drafted = 1 + sizes.options.num_drafted
    return min(sizes.max_num_seqs * drafted, sizes.max_num_batched_tokens)


def _top_k_rows(sizes: Trial) -> int:
    """Rows that Triton's top-k keeps from the first sampled step on; the first runner made them in its profile run."""
    if not sizes.version.runs_model_runner_v2(sizes.spec):
        return 0
    return 4 * min(sizes.device.sm_count, _rows(sizes)) * sizes.spec.vocab_size
