"""What people commonly get wrong, said with the numbers of the run at hand. docs/memory.md has all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qserve.core.hardware import Device
from qserve.core.model_spec import ModelSpec
from qserve.core.release import Release, shown_release
from qserve.core.schemes import SCHEMES
from qserve.core.wheels import LEAST_OF_OLD_TORCH, TESTED_TORCH, shown, too_old
from qserve.planner.engine import engine_named
from qserve.planner.notes import old_card_note
from qserve.planner.training.card_memory import Run, engine_need_bytes
from qserve.planner.training.fragmentation import cached_bytes
from qserve.planner.training.states import precision_of
from qserve.planner.training.training_plan import CardMemory
from qserve.planner.training.training_request import TrainingRequest
from qserve.units import GIB, format_bytes

__all__ = ["PER_TOKEN", "notes_on", "old_release_notes", "traps_of"]

_WORTH_SAYING = GIB // 2
# Releases of TRL before it are older than transformers 5.0: https://github.com/huggingface/transformers/releases/tag/v5.0.0
_JOINED_EXPERTS_SINCE = (0, 27)
# Terms that grow with the tokens of a micro-batch; what is left without them no batch size can change.
PER_TOKEN = ("activations", "recomputed layer", "layer gradients", "logits", "fragmentation")


def notes_on(run: Run, cards: tuple[CardMemory, ...], devices: Sequence[Device]) -> tuple[str, ...]:
    """Sentences that matter for just this run; printed with every plan. `devices`: every card of it."""
    return (*_on_old_cards(run, devices), *_on_memory(run, cards), *_on_engine(run, cards), *_on_model(run))


def traps_of(run: Run, card: CardMemory) -> tuple[str, ...]:
    """What write-ups on training get wrong, with this run's numbers on its tightest card; printed by --explain."""
    policy = run.models[0]
    precision = precision_of(policy.trained_tensors[0], policy, run.request)
    per_token = sum(term.num_bytes for term in (*card.terms, *card.other_terms) if term.name in PER_TOKEN)
    adapter_bytes = precision.weight_bytes + precision.gradient_bytes + precision.master_bytes
    adapter_bytes += 2 * precision.state_bytes
    traps = [
        "activations are linear in length with sdpa and flash attention, quadratic only where the attention matrix is "
        f"held: half the length saves {format_bytes(per_token / 2)} here, not half of {format_bytes(card.used_bytes)}",
        "bf16 and fp16 take the same bytes; bf16 avoids overflows; it saves no memory",
        "gradient checkpointing is switched on at the model, model.gradient_checkpointing_enable(), or by the "
        "trainer's gradient_checkpointing=True; from_pretrained takes no such option. It costs 20 to 30 % of speed",
        f"a reward head is {policy.spec.hidden_size} of {policy.parameters / 1e9:.2f} billion parameters, not 1 %: "
        "freezing the base saves its gradients and states",
        "Adam's two fp32 states are 8 bytes a parameter; mixed precision adds 4 for the fp32 master copy",
        "empty_cache() lowers what the driver reports, not what the run needs",
    ]
    if policy.tuning in ("lora", "qlora"):
        size = format_bytes(policy.trainable * adapter_bytes)
        traps.append(
            f"a larger LoRA rank never saves memory: rank {policy.rank} is {policy.trainable / 1e6:.1f} M parameters, "
            f"{size} with gradients and Adam before ZeRO, twice the rank twice that"
        )
    if run.request.vllm is not None:
        traps.append(
            "raising gpu_memory_utilization gives the engine more and takes it from a trainer on the same card"
        )
    return tuple(traps)


def _on_old_cards(run: Run, devices: Sequence[Device]) -> Iterator[str]:
    """Cards that the wheels have no kernels for, and what of this run has none in any wheel."""
    if (none := too_old(devices, LEAST_OF_OLD_TORCH)) is not None:
        yield (
            f"{none.name} has compute capability {shown(none.compute_capability)}, and no wheel of torch has kernels "
            f"below {shown(LEAST_OF_OLD_TORCH)}: this run does not start there"
        )
        return
    yield from old_card_note(devices, TESTED_TORCH)
    if run.request.vllm is not None and (why := engine_named("vllm").planner.why_no_kernels(devices, None)):
        yield f"{why}: --vllm does not start there; without it the trainer generates by itself"
    scheme = _scheme(run)
    if scheme is not None and (old := too_old(devices, SCHEMES[scheme].least_card)) is not None:
        yield (
            f"bitsandbytes' wheels hold kernels for {scheme.removeprefix('bnb-')} from "
            f"{shown(SCHEMES[scheme].least_card)} on, and {old.name} has {shown(old.compute_capability)}: take 16 bit "
            "(--method lora without --quant)"
        )


def _scheme(run: Run) -> str | None:
    """What bitsandbytes holds the frozen base in; None: nothing."""
    request = run.request
    if request.method == "qlora" or request.load_in_4bit or request.quant == "4bit":
        return "bnb-nf4"
    return "bnb-int8" if request.quant == "int8" else None


def _on_memory(run: Run, cards: tuple[CardMemory, ...]) -> Iterator[str]:
    request = run.request
    tight = min(cards, key=lambda card: card.total_bytes - card.high_bytes)
    if tight.free_bytes >= 0 and tight.high_bytes > tight.total_bytes:
        yield (
            f"it may run out of memory: the upper estimate is {format_bytes(tight.high_bytes)} of "
            f"{format_bytes(tight.total_bytes)}; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
        )
    if request.mean_length and (cached := cached_bytes(run, tight.free_bytes)) > _WORTH_SAYING:
        yield (
            f"the driver may show about {format_bytes(cached)} more: torch's allocator keeps blocks of unlike lengths "
            "while there is room, and gives them back before it fails"
        )
    if request.attention == "eager":
        yield "eager attention holds heads × length² scores; with sdpa or flash attention memory is linear in length"
    if run.num_ranks > 1 and request.sharding_stage == 0:
        yield f"without ZeRO each of the {run.num_ranks} cards holds everything: more cards only shorten the run"


def _on_engine(run: Run, cards: tuple[CardMemory, ...]) -> Iterator[str]:
    vllm = run.request.vllm
    if vllm is None:
        return
    total = cards[-1].total_bytes
    claim = round(vllm.fraction * total)
    if vllm.mode == "colocated":
        yield (
            f"gpu_memory_utilization is a share of the whole card, not of what is free: the engine claims "
            f"{format_bytes(claim)} and leaves {format_bytes(total - claim)} to the trainer"
            + (" while it generates" if vllm.sleep else "")
        )
    need = engine_need_bytes(run.models[0].spec, vllm, run.request.max_length)
    yield f"the engine needs at least {format_bytes(need)} a card to start; what it claims beyond that is cache"


def old_release_notes(trl: Release, request: TrainingRequest, spec: ModelSpec) -> tuple[str, ...]:
    """What the plan of that release of TRL does not count."""
    if spec.moe is None or request.tuning not in ("lora", "qlora") or trl >= _JOINED_EXPERTS_SINCE:
        return ()
    return (
        f"TRL {shown_release(trl)} ran on transformers 4, which has the matrices of each expert apart: adapters "
        "of all-linear reached them, and bitsandbytes quantized them. The plan counts the joined ones of release 5",
    )


def _on_model(run: Run) -> Iterator[str]:
    policy = run.models[0]
    if policy.tuning == "qlora" and run.request.zero_stage == 3:
        yield "ZeRO-3 shards 4-bit weights only as bnb_4bit_quant_storage=torch.bfloat16 stores them"
    if policy.spec.moe is not None and policy.tuning in ("lora", "qlora"):
        yield "adapters on fused experts are not counted: PEFT's all-linear does not reach them in transformers 5"
    if policy.spec.moe is not None and policy.tuning == "qlora" and policy.spec.quantization is None:
        yield (
            "transformers 5 joins a layer's experts in one parameter, which bitsandbytes leaves in 16 bit "
            "(bitsandbytes#1849): most of this model stays as large as it was"
        )
    if policy.spec.is_hybrid:
        yield "activations of linear-attention layers are counted like those of full attention: not measured"
