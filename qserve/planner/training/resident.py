"""What a rank holds for the whole run: the states of its models, and the process that it is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qserve.core.hardware import Device
from qserve.planner.plan import Term
from qserve.planner.training.models import TrainedModel
from qserve.planner.training.states import States, master_bytes, precision_of, states_of
from qserve.planner.training.training_constants import (
    EIGHT_BIT_STATE_BYTES,
    NCCL,
    PRECISIONS,
    RUNTIME,
    RUNTIME_ON_CPU,
    Precision,
)
from qserve.planner.training.training_request import TrainingRequest

__all__ = ["Run", "band_term", "environment_terms", "resident_terms", "term"]

_ZERO = "ZeRO, https://arxiv.org/abs/1910.02054, table 1"


@dataclass(frozen=True)
class Run:
    """A request with its models and the number of trainer ranks."""

    request: TrainingRequest
    models: tuple[TrainedModel, ...]
    num_ranks: int

    @property
    def trained(self) -> tuple[TrainedModel, ...]:
        return tuple(model for model in self.models if model.tuning is not None)

    def states(self) -> tuple[tuple[TrainedModel, States], ...]:
        return tuple((model, states_of(model, self.request, self.num_ranks)) for model in self.models)


def resident_terms(run: Run) -> tuple[Term, ...]:
    """Weights, gradients, optimizer and communication buckets of every model."""
    return tuple(one for model, states in run.states() for one in _state_terms(run, model, states))


def _state_terms(run: Run, model: TrainedModel, states: States) -> Iterable[Term]:
    request, precision, role = run.request, PRECISIONS[run.request.precision], model.role
    stage, ranks = request.sharding_stage, run.num_ranks
    by = {limit: f" / {ranks} ranks" if stage >= limit and ranks > 1 else "" for limit in (1, 2, 3)}
    count, trained = _billions(model.parameters), _billions(model.trainable)
    width = precision.weight_bytes if model.tuning == "full" else request.frozen_bytes
    how = f"{count} parameters × {width} B{by[3]}"
    if model.quantization is not None:
        rest = "16 bit" if request.frozen_bytes == 2 else "fp32"
        held = (
            f"embeddings in {rest}, norms in fp32"
            if request.kbit_fp32 == "norms"
            else f"embeddings and norms in {rest}"
        )
        how = f"{count} parameters as {model.quantization.scheme}, {held}{by[3]}"
    if model.tuning in ("lora", "qlora"):
        how += f" + adapters {trained}"
    if model.tuning == "full" and precision.cast_bytes:
        how += f" + {precision.cast_bytes} B that autocast keeps"
    yield term(f"weights ({role})", states.weights_bytes, how, _ZERO)
    if model.tuning is None:
        return
    trained_precision = precision_of(model.trained_tensors[0], model, request)
    how = f"{trained} trained × {trained_precision.gradient_bytes} B{by[2]}"
    yield term(f"gradients ({role})", states.gradients_bytes, how, _ZERO)
    master = master_bytes(trained_precision, request)
    how = _optimizer_formula(request.optimizer, trained_precision, master, trained) + by[1]
    yield term(f"optimizer ({role})", states.optimizer_bytes, how, _ZERO)
    how = "gradients on their way between ranks: DDP copies them all, ZeRO has a buffer of fixed size, FSDP a group"
    yield term(f"buckets ({role})", states.buckets_bytes, how, "DeepSpeed reduce_bucket_size; DDP's flat buckets")


def _optimizer_formula(name: str, precision: Precision, master_bytes: int, trained: str) -> str:
    master = f"{master_bytes} B fp32 master + " if master_bytes else ""
    states = {
        "adamw": f"2 × {precision.state_bytes} B",
        "adamw-fused": f"2 × {precision.state_bytes} B",
        "adamw-8bit": f"2 × {EIGHT_BIT_STATE_BYTES:.3f} B, embeddings 2 × 4 B",
        "adafactor": "rows + columns only",
        "lion": f"{precision.state_bytes} B",
        "sgd": "no state",
    }[name]
    return f"{trained} trained × ({master}{name}: {states})"


def environment_terms(run: Run, device: Device) -> tuple[Term, ...]:
    band, how = RUNTIME, "CUDA context, cuBLAS, loaded kernels"
    if device.kind == "cpu":
        band, how = RUNTIME_ON_CPU, "Python with torch, transformers and TRL"
    low, expected, high, source = int(band.low), int(band.expected), int(band.high), band.source
    if run.request.runtime_bytes is not None:
        low = expected = high = run.request.runtime_bytes
        source = "as given, or as earlier runs on this machine had it"
    terms = [term("runtime", expected, how, source, low, high)]
    if run.num_ranks > 1 and device.kind != "cpu":
        terms.append(band_term("nccl", "communicators", NCCL.expected, NCCL.low, NCCL.high, NCCL.source))
    terms.append(term("others", device.used_by_others_bytes, "held by other processes", "driver"))
    return tuple(terms)


def band_term(name: str, how: str, expected: float, low: float, high: float, source: str) -> Term:
    return term(name, round(expected), how, source, round(low), round(high))


def term(name: str, num_bytes: int, how: str, source: str, low: int | None = None, high: int | None = None) -> Term:
    return Term(name, num_bytes, how, source, num_bytes if low is None else low, num_bytes if high is None else high)


def _billions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e8 else f"{count / 1e6:.2f} M"
