"""Suggestions for a training run that does not fit, in the order in which people try them; each is planned before it is
offered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import cast

from qserve.core.release import shown_release
from qserve.errors import UsageError
from qserve.planner.plan import Suggestion
from qserve.planner.training.command import with_count
from qserve.planner.training.duration import Duration
from qserve.planner.training.job import TrainingJob
from qserve.planner.training.training_defaults import default_precision
from qserve.planner.training.training_plan import TrainingPlan
from qserve.planner.training.trl_releases import OUR_TRL, TILES_SINCE

__all__ = ["FittingChange", "TrainingSuggestion", "cheaper", "fitting_jobs", "training_suggestions"]

_MOST = 4


@dataclass(frozen=True)
class TrainingSuggestion(Suggestion):
    """`used_bytes` of the fullest card, `host_bytes` of RAM for what is offloaded, and how long the run then takes."""

    used_bytes: int = 0
    host_bytes: int = 0
    duration: Duration | None = None


@dataclass(frozen=True)
class FittingChange:
    """What changes, and the job after it, which fits."""

    suggestion: TrainingSuggestion
    job: TrainingJob


@dataclass(frozen=True)
class _Change:
    what: str
    cost: str
    apply: Callable[[TrainingJob], TrainingJob | None]


def training_suggestions(job: TrainingJob) -> tuple[TrainingSuggestion, ...]:
    """Up to four changes after which the run fits: single ones first, then pairs and triples of them."""
    return tuple(one.suggestion for one in fitting_jobs(job))


def fitting_jobs(job: TrainingJob) -> tuple[FittingChange, ...]:
    """The same with the jobs that fit, in the order of _CHANGES."""
    found: list[FittingChange] = []
    used: list[set[str]] = []
    applicable = [change for change in _CHANGES if change.apply(job) is not None]
    for size in (1, 2, 3):
        for changes in combinations(applicable, size):
            names = {change.what for change in changes}
            # A pair that holds a change that suffices alone adds nothing.
            if any(done <= names for done in used) or len(found) >= _MOST:
                continue
            one = _tried(job, changes)
            if one is not None and all(one.job != other.job for other in found):
                found.append(one)
                used.append(names)
        if len(found) >= 3:
            break
    return tuple(found)


def cheaper(job: TrainingJob) -> tuple[Suggestion, ...]:
    """Single changes that lower what the tightest card needs, cheapest first, whether they suffice or not.

    What to pull when a run went out of memory though its plan fits.
    """
    used = _most_used(job)
    tried = [(change, change.apply(job)) for change in _CHANGES]
    return tuple(
        Suggestion(change.what, change.cost, changed.command())
        for change, changed in tried
        if changed is not None and used is not None and (_most_used(changed) or used) < used
    )


def _most_used(job: TrainingJob) -> int | None:
    plan = _planned(job)
    return None if plan is None else max(card.used_bytes for card in plan.cards)


def _tried(job: TrainingJob, changes: Sequence[_Change]) -> FittingChange | None:
    changed: TrainingJob | None = job
    for change in changes:
        changed = change.apply(changed) if changed is not None else None
    plan = _planned(changed) if changed is not None else None
    if changed is None or plan is None or not plan.fits:
        return None
    what, cost = ", and ".join(change.what for change in changes), "; ".join(change.cost for change in changes)
    used = max(card.used_bytes for card in plan.cards)
    made = TrainingSuggestion(
        what, cost, changed.command(), used_bytes=used, host_bytes=plan.host_bytes, duration=plan.duration
    )
    return FittingChange(made, changed)


def _planned(job: TrainingJob) -> TrainingPlan | None:
    try:
        return job.plan()
    except UsageError:  # a change that the other flags forbid
        return None


def _fits(job: TrainingJob) -> bool:
    plan = _planned(job)
    return plan is not None and plan.fits


def _with(job: TrainingJob, **fields: object) -> TrainingJob | None:
    """Where the precision is the default, it stays that under another stage of ZeRO."""
    request = job.request
    if request.precision == default_precision(request.zero_stage, on_cpu=job.on_cpu):
        stage = fields.get("zero_stage", request.zero_stage)
        fields["precision"] = default_precision(cast("int", stage), on_cpu=job.on_cpu)
    try:
        return replace(job, request=replace(request, **fields))  # type: ignore[arg-type]
    except UsageError:
        return None


def _checkpointing(job: TrainingJob) -> TrainingJob | None:
    return None if job.request.gradient_checkpointing else _with(job, gradient_checkpointing=True)


def _sdpa(job: TrainingJob) -> TrainingJob | None:
    return _with(job, attention="sdpa") if job.request.attention == "eager" else None


def _tiled_loss(job: TrainingJob) -> TrainingJob | None:
    """In place of a fused loss whose evaluation holds all logits."""
    return _with(job, fused_loss=False, evaluation=False, tiled_loss=True) if job.request.scores_all_logits else None


def _no_evaluation(job: TrainingJob) -> TrainingJob | None:
    return _with(job, evaluation=False) if job.request.scores_all_logits else None


def _fused_loss(job: TrainingJob) -> TrainingJob | None:
    has_logits = job.request.method != "reward" and not (job.request.fused_loss or job.request.tiled_loss)
    return _with(job, fused_loss=True) if has_logits else None


def _micro_batch(job: TrainingJob) -> TrainingJob | None:
    """The largest smaller micro-batch that fits, with the accumulation that keeps the batch; else 1."""
    request = job.request
    divisors = [size for size in range(request.micro_batch - 1, 0, -1) if request.micro_batch % size == 0]
    tried: TrainingJob | None = None
    for size in divisors:
        steps = request.gradient_accumulation_steps * request.micro_batch // size
        tried = _with(job, micro_batch=size, gradient_accumulation_steps=steps)
        if tried is not None and _fits(tried):
            return tried
    return tried


def _sleep(job: TrainingJob) -> TrainingJob | None:
    vllm = job.request.vllm
    if vllm is None or vllm.sleep or vllm.mode == "separate":
        return None
    return _with(job, vllm=replace(vllm, sleep=True))


def _fraction(job: TrainingJob) -> TrainingJob | None:
    """The largest lower fraction that fits, in steps of 0.05; None where the plan computes it anyway."""
    vllm = job.request.vllm
    if vllm is None or vllm.mode == "separate" or vllm.gpu_memory_utilization is None:
        return None
    for step in range(int(vllm.gpu_memory_utilization * 20 - 1e-9), 0, -1):
        tried = _with(job, vllm=replace(vllm, gpu_memory_utilization=step / 20))
        if tried is not None and _fits(tried):
            return tried
    return None


def _sharded_engine(job: TrainingJob) -> TrainingJob | None:
    """The engine over twice the cards, which halves its weights on each, with the fraction that then fits."""
    vllm = job.request.vllm
    if vllm is None or vllm.mode == "separate" or len(job.devices) % (2 * vllm.tensor_parallel_size):
        return None
    changed = _with(job, vllm=replace(vllm, tensor_parallel_size=2 * vllm.tensor_parallel_size))
    return (_fraction(changed) or changed) if changed is not None else None


def _zero(stage: int) -> Callable[[TrainingJob], TrainingJob | None]:
    def apply(job: TrainingJob) -> TrainingJob | None:
        ranks = len(job.devices)
        return _with(job, zero_stage=stage) if ranks > 1 and job.request.zero_stage < stage else None

    return apply


def _eight_bit(job: TrainingJob) -> TrainingJob | None:
    return _with(job, optimizer="adamw-8bit") if job.request.optimizer.startswith("adamw") else None


def _separate(job: TrainingJob) -> TrainingJob | None:
    vllm = job.request.vllm
    if vllm is None or vllm.mode == "separate" or len(job.devices) < 2:
        return None
    return _with(job, vllm=replace(vllm, mode="separate", sleep=False))


def _offload(job: TrainingJob) -> TrainingJob | None:
    """Processes on a CPU have nowhere to offload to."""
    return None if job.on_cpu else _with(job, offload_optimizer="cpu", zero_stage=max(job.request.zero_stage, 2))


def _lora(job: TrainingJob) -> TrainingJob | None:
    return _with(job, lora_rank=16) if job.request.tuning == "full" else None


def _qlora(job: TrainingJob) -> TrainingJob | None:
    may = job.request.method in ("sft", "lora") and job.request.offload_param == "none"
    return _with(job, method="qlora", quant=None, lora_rank=job.request.lora_rank or 16) if may else None


def _half_length(job: TrainingJob) -> TrainingJob | None:
    request = job.request
    completion = request.completion_length and max(1, request.completion_length // 2)
    return _with(job, max_length=request.max_length // 2, completion_length=completion)


def _offload_all(job: TrainingJob) -> TrainingJob | None:
    if job.request.tuning == "qlora" or job.request.offload_param != "none" or job.on_cpu:
        return None
    return _with(job, offload_optimizer="cpu", offload_param="cpu", zero_stage=3)


def _cards(job: TrainingJob) -> TrainingJob | None:
    """Two, four or eight times the cards with the same batch, the first number that fits; else twice.

    torch's fused AdamW, where its other one's temporaries of a step are what does not fit.
    """
    each = [_times_the_cards(job, factor) for factor in (2, 4, 8)]
    tried = [one for more in each if more is not None for one in (more, _fused_optimizer(more)) if one is not None]
    return next((more for more in tried if _fits(more)), tried[0] if tried else None)


def _fused_optimizer(job: TrainingJob) -> TrainingJob | None:
    return _with(job, optimizer="adamw-fused") if job.request.optimizer == "adamw" else None


def _times_the_cards(job: TrainingJob, factor: int) -> TrainingJob | None:
    if job.gpu is None or job.on_cpu:
        return None
    steps = max(1, job.request.gradient_accumulation_steps // factor)
    sharded = _with(job, zero_stage=3, gradient_accumulation_steps=steps)
    count = factor * len(job.devices)
    return sharded and replace(sharded, devices=job.devices[:1] * count, gpu=with_count(job.gpu, count))


_CHANGES = (
    _Change(
        "the loss in tiles, also of held-out rows", f"no cost; needs TRL {shown_release(TILES_SINCE)}", _tiled_loss
    ),
    _Change("no evaluation during the run", "held-out rows are scored after it", _no_evaluation),
    _Change("recompute activations (gradient checkpointing)", "20 to 30 % slower", _checkpointing),
    _Change("use sdpa instead of eager attention", "no cost; it is faster too", _sdpa),
    _Change("a fused loss (use_liger_kernel)", f"no cost; needs liger-kernel; {OUR_TRL} leaves it off", _fused_loss),
    _Change("a smaller micro-batch with more accumulation", "more, smaller steps for the same batch", _micro_batch),
    _Change("let the engine sleep while the trainer works", "seconds a step to wake it; RAM for its weights", _sleep),
    _Change("a lower gpu_memory_utilization", "less cache: fewer rollouts at once", _fraction),
    _Change("ZeRO-2", "gradients are reduced in shards", _zero(2)),
    _Change("ZeRO-3", "weights are gathered layer by layer: 1.5 × the traffic", _zero(3)),
    _Change("8-bit Adam", "quantized optimizer states; needs bitsandbytes", _eight_bit),
    _Change("the engine over twice the cards, at a lower fraction", "tensor parallel traffic", _sharded_engine),
    _Change("a card of its own for the engine", "one trainer less", _separate),
    _Change("LoRA of rank 16", "trains adapters instead of all weights", _lora),
    _Change("QLoRA of rank 16", "4-bit base weights: slightly worse", _qlora),
    _Change("half the length", "longer samples are cut", _half_length),
    _Change("more cards, with ZeRO-3", "more hardware", _cards),
    _Change("ZeRO-2 with the optimizer in RAM", "the optimizer steps on the CPU", _offload),
    _Change("ZeRO-3 with weights and optimizer in RAM", "each layer crosses PCIe in each pass", _offload_all),
)
