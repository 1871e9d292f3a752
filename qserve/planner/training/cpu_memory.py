"""A training run on a CPU, phase by phase: which tensors live at the same time, in one process of those that share it.

Gradients are dropped after every step, so that activations are at their most before there is one: the peak of the two
passes is where the loss is computed, or where the last gradient has come. No allocator keeps anything in between.
What is offloaded to RAM stays in the process.
"""

from __future__ import annotations

from dataclasses import replace

from qserve.core.hardware import Device
from qserve.planner.plan import Term
from qserve.planner.training.cpu_activations import backward_bytes, ends_bytes, kept_bytes, layer_bytes, unkept_bytes
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.resident import Run, environment_terms, resident_terms, term
from qserve.planner.training.saved_activations import logits_bytes
from qserve.planner.training.states import precision_of
from qserve.planner.training.training_constants import (
    OPTIMIZERS,
    PRECISIONS,
    ZERO_BUCKET_ELEMENTS_ON_CPU,
    ZERO_SUB_GROUP_ELEMENTS_ON_CPU,
)

__all__ = ["cpu_phases"]

_PROFILED = "torch's profiler over TRL's own steps, tests/tiny/training/test_methods.py"


def cpu_phases(run: Run, device: Device) -> dict[str, tuple[Term, ...]]:
    """Terms of the passes (backward) and of the optimizer's step."""
    run = _without_offload(run)
    buckets = _buckets(run)
    resident = tuple(one for one in resident_terms(run) if one.name != buckets.name) + environment_terms(run, device)
    # ZeRO-3 has its shard of the gradients from the beginning on.
    keeps = run.request.gradient_accumulation_steps > 1 or run.request.zero_stage == 3
    held = tuple(one for one in resident if keeps or not one.name.startswith("gradients"))
    passing = (buckets, *_gathered(run))
    at_loss, at_last = held + passing + _at_loss(run), resident + passing + _at_last_gradient(run)
    return {"backward": max(at_loss, at_last, key=_sum), "step": (*resident, buckets, *_step(run))}


def _without_offload(run: Run) -> Run:
    return replace(run, request=replace(run.request, offload_optimizer="none", offload_param="none"))


def _buckets(run: Run) -> Term:
    """Of the model that has most; DeepSpeed's buffer only as far as gradients are written to it."""
    (found,) = [one for one in resident_terms(run) if one.name == f"buckets ({run.trained[0].role})"]
    if not run.request.zero_stage:
        return found
    width = PRECISIONS[run.request.precision].gradient_bytes
    size = width * min(ZERO_BUCKET_ELEMENTS_ON_CPU, run.trained[0].trainable)
    return term(found.name, size, "gradients that wait to be averaged", "reduce_bucket_size of deepspeed.json")


def _gathered(run: Run) -> tuple[Term, ...]:
    """What is whole while it computes: ZeRO-3 takes one module after the other here, FSDP a layer."""
    if run.request.sharding_stage < 3:
        return ()
    if run.request.fsdp:
        size = max(states.gathered_bytes for _, states in run.states())
        return (term("gathered", size, "two layers and the embedding, whole", "torch's fully_shard"),)
    width = PRECISIONS[run.request.precision].weight_bytes
    size = max(width * model.spec.vocab_size * model.spec.hidden_size for model in run.models)
    return (term("gathered", size, "the embedding, whole", "stage3_max_reuse_distance 0 of deepspeed.json"),)


def _sum(terms: tuple[Term, ...]) -> int:
    return sum(one.num_bytes for one in terms)


def _at_loss(run: Run) -> tuple[Term, ...]:
    """All activations, and the larger of the loss and the backward pass through the last layer."""
    return max((_of_model(run, model) for model in run.trained), key=_sum)


def _of_model(run: Run, model: TrainedModel) -> tuple[Term, ...]:
    request, layers = run.request, model.spec.num_hidden_layers
    tokens = f"{request.tokens} tokens"
    if model.tuning == "head":
        how = f"{tokens} × what one layer computes at once: no graph over frozen weights"
        return (term("activations", unkept_bytes(model, request), how, _PROFILED),)
    per_layer = layer_bytes(model, request)
    backward = backward_bytes(model, request)
    if request.gradient_checkpointing:
        how = f"{tokens} × the input of each of {layers} layers"
        kept, extra = kept_bytes(model, request), ("recomputed layer", per_layer + backward)
        how_extra = f"{tokens} × one layer ({per_layer // request.tokens} B) and its gradients"
    else:
        how = f"{tokens} × {layers} layers × {per_layer // request.tokens} B, operation by operation"
        kept, extra = layers * per_layer, ("layer gradients", backward)
        how_extra = f"{tokens} × the gradients of one MLP"
    kept += ends_bytes(model, request)
    logits = logits_bytes(model, request, on_cpu=True)
    if logits > extra[1]:  # the loss is over when the last layer's backward pass begins
        extra, how_extra = ("logits", logits), "a tile of logits with its gradients, in fp32; of a trained lm_head too"
    return (term("activations", kept, how, _PROFILED), term(*extra, how_extra, _PROFILED))


def _at_last_gradient(run: Run) -> tuple[Term, ...]:
    """The embedding's gradient comes last and is as large as the embedding, before it is added to what was there."""
    request, largest = run.request, 0
    for model in run.trained:
        spec = model.spec
        width = 2 if model.has_16_bit_adapters else PRECISIONS[request.precision].gradient_bytes
        trains_embedding = model.tuning == "full" or model.train_embeddings
        is_shared = spec.tie_word_embeddings and spec.head.kind == "lm"
        times = is_shared + (request.gradient_accumulation_steps > 1)
        largest = max(largest, times * trains_embedding * width * spec.vocab_size * spec.hidden_size)
    how = "the embedding's gradient, before it is added to lm_head's or to the last micro-batch's"
    return (term("embedding gradient", largest, how, _PROFILED),)


def _step(run: Run) -> tuple[Term, ...]:
    """torch takes one tensor after the other on a CPU, so that its temporaries are of the largest one.

    Under ZeRO there is but one, a rank's share of all (of a sub-group in stage 3), with its gradients in one piece.
    """
    copies = OPTIMIZERS[run.request.optimizer].cpu_step_copies
    if run.request.zero_stage:
        share = max(-(-model.trainable // run.num_ranks) for model in run.trained)
        share = min(share, ZERO_SUB_GROUP_ELEMENTS_ON_CPU) if run.request.zero_stage == 3 else share
        how = f"{copies} temporaries and the gradients of a rank's share of all that is trained"
        return (term("optimizer step", 4 * (copies + 1) * share, how, "DeepSpeed's flat partitions"),)
    shards = run.num_ranks if run.request.fsdp else 1
    largest = max(
        tensor.num_elements // tensor.repeat * precision_of(tensor, model, run.request).state_bytes
        for model in run.trained
        for tensor in model.trained_tensors
    )
    how = f"{copies} temporaries of the largest trained tensor"
    return (term("optimizer step", copies * largest // shards, how, _PROFILED),)
