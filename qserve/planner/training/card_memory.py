"""Adds a training run up: one card, phase by phase, term by term."""

from __future__ import annotations

from collections.abc import Iterable

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.planner.memory.kv import kv_bytes_per_token
from qserve.planner.plan import Term
from qserve.planner.training import saved_activations as activations
from qserve.planner.training.cpu_memory import cpu_phases
from qserve.planner.training.fragmentation import fragmentation_term
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.resident import Run, band_term, environment_terms, resident_terms, term
from qserve.planner.training.training_constants import ASLEEP, ENGINE_OVERHEAD, LAYER_BYTES, LOGIT_BYTES
from qserve.planner.training.training_plan import CardMemory
from qserve.planner.training.training_request import TrainingRequest, VllmBeside

__all__ = ["Run", "engine_card", "engine_need_bytes", "host_bytes", "trainer_card"]

_MEMTRACKER = "measured with torch's MemTracker, tests/tiny/training/test_memory.py"


def trainer_card(run: Run, device: Device) -> CardMemory:
    """Memory of a card that trains, in the phase that needs most; or of a CPU's process."""
    phases = cpu_phases(run, device) if device.kind == "cpu" else _phases(run, device)
    sums = {name: _sum(terms) for name, terms in phases.items()}
    worst = max(sums, key=lambda name: sums[name])
    terms = phases[worst]
    kept = tuple(one for one in terms if one.high_bytes)
    every = {one.name: one for other in phases.values() for one in other if one.high_bytes}
    others = tuple(one for name, one in every.items() if name not in {one.name for one in kept})
    return CardMemory(device.name, "trainer", device.total_bytes, worst, sums, kept, others)


def _phases(run: Run, device: Device) -> dict[str, tuple[Term, ...]]:
    resident = resident_terms(run) + environment_terms(run, device)
    backward = resident + _beside(run, device, asleep=True) + _gathered(run) + _backward(run, device)
    phases = {
        "backward": (*backward, fragmentation_term(run, device.total_bytes - _sum(backward))),
        "step": resident + _beside(run, device, asleep=True) + _step(run),
    }
    if run.request.scores_all_logits:
        phases["evaluation"] = resident + _beside(run, device, asleep=True) + _gathered(run) + _evaluation(run)
    if run.request.vllm is not None and run.request.vllm.mode == "colocated":
        phases["rollout"] = resident + _beside(run, device, asleep=False)
    return phases


def _sum(terms: Iterable[Term]) -> int:
    return sum(one.num_bytes for one in terms)


def engine_card(run: Run, vllm: VllmBeside, spec: ModelSpec, device: Device) -> CardMemory:
    """Memory of a card that only generates: what vLLM claims, spent or not."""
    claim = round(vllm.fraction * device.total_bytes)
    terms = (_claim(vllm, device), term("others", device.used_by_others_bytes, "held by other processes", "driver"))
    return CardMemory(
        device.name, "engine", device.total_bytes, "rollout", {"rollout": claim}, tuple(t for t in terms if t.num_bytes)
    )


def engine_need_bytes(spec: ModelSpec, vllm: VllmBeside, max_length: int) -> int:
    """The least that an engine must claim: its share of the weights, one full sequence of cache, its overhead."""
    weights = TrainedModel("policy", spec, None).base_bytes(2)
    cache = kv_bytes_per_token(spec, 2) * max_length
    return round((weights + cache) / vllm.tensor_parallel_size + ENGINE_OVERHEAD.expected)


def host_bytes(run: Run) -> int:
    """RAM or NVMe of the node for everything offloaded, and for an engine's weights while it sleeps."""
    offloaded = sum(states.host_bytes for _, states in run.states())
    vllm = run.request.vllm
    if vllm is None or not vllm.sleep:
        return offloaded
    engines = run.num_ranks // vllm.tensor_parallel_size
    return offloaded + max(1, engines) * run.models[0].base_bytes(2)


def _gathered(run: Run) -> tuple[Term, ...]:
    """What ZeRO-3 holds whole while it computes; the models compute one after the other."""
    states = [states for _, states in run.states()]
    expected = max(state.gathered_bytes for state in states)
    high = sum(state.gathered_high_bytes for state in states)  # each has a coordinator that keeps so much
    how = "two layers (at work, prefetched) and the larger of embedding and lm_head, whole"
    source = "DeepSpeed stage 3; high: stage3_max_live_parameters 1e9"
    return (term("gathered", expected, how, source, expected, high),)


def _backward(run: Run, device: Device) -> tuple[Term, ...]:
    """Activations and logits of the trained model that needs most; policy and critic take turns."""
    on_cpu = device.kind == "cpu"
    model = max(run.trained, key=lambda model: activations.peak_bytes(model, run.request, on_cpu=on_cpu))
    request, tokens = run.request, run.request.tokens
    logits = activations.logits_bytes(model, request, on_cpu=on_cpu)
    if model.tuning == "head":
        how = f"{tokens} tokens × (6 · intermediate + 4 · hidden): no graph over frozen weights"
        return (term("activations", activations.forward_bytes(model, request), how, "one layer's forward pass"),)
    if not request.gradient_checkpointing:
        per_token = round(activations.layer_bytes_per_token(model, request))
        layers = model.spec.num_hidden_layers
        how = f"{tokens} tokens × {layers} layers × {per_token} B ({_layer_formula(model, request)})"
        saved = term("activations", activations.saved_bytes(model, request), how, _MEMTRACKER)
        return (saved, _logits_term(model, request, logits))
    kept = activations.checkpoint_bytes(model, request)
    how = f"{tokens} tokens × {model.spec.num_hidden_layers} layers × {activations.stream_bytes(request)} · hidden "
    how += str(model.spec.hidden_size)
    terms = [term("activations", kept, how, "Chen et al. 2016, https://arxiv.org/abs/1604.06174")]
    recomputed = activations.recompute_bytes(model, request)
    if recomputed > logits:  # the loss is over when the first layer is recomputed: the larger of the two counts
        how = f"{tokens} tokens × one layer ({_layer_formula(model, request)}) + 6 · intermediate of gradients"
        terms.append(term("recomputed layer", recomputed, how, _MEMTRACKER))
    else:
        terms.append(_logits_term(model, request, logits))
    return tuple(terms)


def _layer_formula(model: TrainedModel, request: TrainingRequest) -> str:
    parts = [f"{LAYER_BYTES.hidden} · hidden", f"{LAYER_BYTES.heads} · q", f"{LAYER_BYTES.intermediate} · intermediate"]
    parts += [f"{LAYER_BYTES.qk_norm} · (q + kv)"] if model.spec.qk_norm else []
    if model.spec.moe is not None:
        parts.append(f"{LAYER_BYTES.routed_hidden} · hidden · {model.spec.moe.num_experts_per_tok} experts a token")
    parts += [f"{LAYER_BYTES.lora_input} · adapter inputs"] if model.adapter_input_dims else []
    parts += [f"{LAYER_BYTES.fp32_intermediate} · intermediate in fp32"] if activations.has_fp32_stream(request) else []
    parts += ["8 · heads · length: eager attention is quadratic"] if request.attention == "eager" else []
    return " + ".join(parts)


def _logits_term(model: TrainedModel, request: TrainingRequest, num_bytes: int) -> Term:
    kind, low = activations.logits_kind(request), num_bytes
    each = model.spec.vocab_size * request.logit_tokens
    how = f"{request.logit_tokens} tokens × {model.spec.vocab_size} vocabulary × {LOGIT_BYTES[kind]} B"
    if cast := activations.cast_head_bytes(model, request):
        how += f" + {cast // (model.spec.vocab_size * model.spec.hidden_size)} · vocabulary · hidden: lm_head, cast"
    if request.fused_loss:
        how = "a chunk of logits, gradients of the hidden states and of a trained lm_head: fused linear cross-entropy"
    if request.tiled_loss:
        how = "a tile of logits, fp32 gradients of the hidden states and of a trained lm_head: trl's chunked log-probs"
    if model.spec.head.kind != "lm":
        how = "none: a reward head gives one number a sequence"
    elif kind == "rl-fp32" and not (request.fused_loss or request.tiled_loss):
        low -= (LOGIT_BYTES[kind] - LOGIT_BYTES["rl-16bit"]) * each  # where nothing converted them
    return term("logits", num_bytes, how, _MEMTRACKER, low, num_bytes)


def _evaluation(run: Run) -> tuple[Term, ...]:
    """A forward pass over held-out rows of the same size; Liger fuses the loss of a training pass alone.

    TRL asks it to skip the logits of an evaluation too from 0.29 on (https://github.com/huggingface/trl/pull/5069).
    """
    model = max(run.trained, key=lambda model: activations.scored_logits_bytes(model, run.request))
    logits = activations.scored_logits_bytes(model, run.request)
    per = logits // max(1, model.spec.vocab_size * run.request.logit_tokens)
    how = f"{run.request.logit_tokens} tokens × {model.spec.vocab_size} vocabulary × {per} B: all of them, unfused"
    source = "liger_kernel/transformers/model: skip_logits = self.training; transformers' loss in fp32"
    forward = activations.forward_bytes(model, run.request)
    return (
        term("logits", logits, how, source),
        term("activations", forward, "one layer's forward pass", "no graph, nothing kept"),
    )


def _step(run: Run) -> tuple[Term, ...]:
    """Temporaries of the optimizer step; the optimizers of policy and critic step one after the other."""
    temporaries = max(states.step_bytes for _, states in run.states())
    how = "fp32 copies of 16-bit gradients, and sqrt of the second moment (foreach AdamW)"
    return (term("optimizer step", temporaries, how, "torch.optim._multi_tensor_adamw; DeepSpeed stage 1 to 3"),)


def _beside(run: Run, device: Device, *, asleep: bool) -> tuple[Term, ...]:
    vllm = run.request.vllm
    if vllm is None or vllm.mode != "colocated":
        return ()
    if asleep and vllm.sleep:
        how = "context, graphs and buffers of the sleeping engine"
        return (band_term("vllm", how, ASLEEP.expected, ASLEEP.low, ASLEEP.high, ASLEEP.source),)
    return (_claim(vllm, device),)


def _claim(vllm: VllmBeside, device: Device) -> Term:
    claim = round(vllm.fraction * device.total_bytes)
    how = f"gpu_memory_utilization {vllm.gpu_memory_utilization} × the card's total, free or not"
    return term("vllm", claim, how, "vLLM: requested memory = total × gpu_memory_utilization")
