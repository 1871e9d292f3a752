"""The planner knows what is installed: it takes what runs, and says what has to be installed for the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.detect.engine_checks import engine_checks, why_not_served
from qserve.detect.packages import Packages
from qserve.errors import UsageError
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.planner import Plan, make_plan, plan_request
from qserve.units import GIB
from tests.unit.planner.test_make_plan import checkpoint_of

DESCRIBED = Hardware(parse_gpu("l40s"), 128 * GIB, 120 * GIB, 16)
BARE = frozenset({"torch", "transformers", "bitsandbytes"})


ON_CPU = Hardware((), 128 * GIB, 120 * GIB, 16, packages=BARE)


def plan_of(model: str, quant: str = "auto", packages: frozenset[str] | None = None) -> Plan:
    request = plan_request(engine="transformers", quant=quant)
    return make_plan(resolve(model), replace(DESCRIBED, packages=packages), request)


@pytest.mark.parametrize("packages", [None, BARE])
def test_4_bit_on_transformers_takes_what_the_set_up_installs(packages: frozenset[str] | None) -> None:
    plan = plan_of("Qwen/Qwen3-8B", "4bit", packages)
    assert (plan.quant.scheme, plan.quant.checkpoint, plan.quant.in_flight) == ("bnb-nf4", "Qwen/Qwen3-8B", True)
    assert any("awq checkpoint was not taken" in note and 'pip install "gptqmodel' in note for note in plan.notes)


def test_a_calibrated_checkpoint_is_taken_where_its_kernels_are_installed() -> None:
    plan = plan_of("Qwen/Qwen3-8B", "4bit", BARE | {"gptqmodel"})
    assert (plan.quant.scheme, plan.quant.checkpoint) == ("awq", "Qwen/Qwen3-8B-AWQ")


@pytest.mark.parametrize("packages", [None, BARE, BARE | {"kernels"}])
def test_fp8_needs_no_package(packages: frozenset[str] | None) -> None:
    """A plan for a named card is the same whatever this machine has."""
    plan, plain = plan_of("Qwen/Qwen3-32B", packages=packages), plan_of("Qwen/Qwen3-32B", "bf16")
    assert (plan.quant.scheme, plan.quant.checkpoint, plan.fits) == ("fp8", "Qwen/Qwen3-32B-FP8", True)
    assert plan.devices[0].weights_bytes < 0.53 * plain.devices[0].weights_bytes
    assert not any("package" in note or "16 bit while" in note for note in plan.notes)
    assert why_not_served(plan, Packages(dict.fromkeys(BARE, "1"))) is None


@pytest.mark.parametrize(("gpu", "share"), [("a100-80gb", 0.52), ("rtx-3090", 0.52), ("h200", 0.52), ("t4", 1.0)])
def test_cards_hold_fp8_as_it_is_stored(gpu: str, share: float) -> None:
    """From Ampere on, experts among it; before, the library makes it 16 bit while loading."""
    described = replace(DESCRIBED, devices=parse_gpu(gpu))
    request = plan_request(engine="transformers")
    for model in ("Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"):
        held, plain = (
            make_plan(resolve(f"{model}{end}"), described, replace(request, quant=quant))
            for end, quant in (("-FP8", "auto"), ("", "bf16"))
        )
        assert held.devices[0].weights_bytes == pytest.approx(share * plain.devices[0].weights_bytes, rel=0.15)


def test_fp8_is_made_while_loading_on_cards_that_hold_it() -> None:
    """A scale a row; experts as well, which bitsandbytes leaves. What is made so is not offloaded."""
    checkpoint = checkpoint_of("Qwen/Qwen3-30B-A3B")
    renamed = replace(checkpoint, id="mine", spec=replace(checkpoint.spec, id="mine"))
    h200 = replace(DESCRIBED, devices=parse_gpu("h200"))
    plan = make_plan(renamed, h200, plan_request(engine="transformers", quant="fp8"))
    assert (plan.quant.scheme, plan.quant.in_flight, plan.quant.checkpoint) == ("fp8_per_channel", True, "mine")
    parameters = checkpoint.parameters
    assert 1.0 * parameters < plan.devices[0].weights_bytes < 1.05 * parameters
    old = plan_request(engine="transformers", quant="fp8", engine_version="4.51.3", max_model_len=4096)
    with pytest.raises(UsageError, match="--quant fp8 of mine does not run on transformers"):
        make_plan(renamed, h200, old)
    for hardware in (replace(DESCRIBED, devices=parse_gpu("t4")), ON_CPU):
        with pytest.raises(UsageError, match="--quant fp8 of mine does not run on transformers"):
            make_plan(renamed, hardware, plan_request(engine="transformers", quant="fp8"))


def test_what_is_named_is_planned_with_what_it_needs() -> None:
    awq = plan_of("Qwen/Qwen3-8B", "awq")
    assert awq.quant.scheme == "awq"
    assert any("awq on the transformers engine needs more than the set-up installs" in note for note in awq.notes)
    assert "gptqmodel" in str(why_not_served(awq, Packages(dict.fromkeys(BARE, "1"))))
    assert why_not_served(awq, Packages(dict.fromkeys(BARE | {"gptqmodel"}, "1"))) is None


@pytest.mark.parametrize(
    ("model", "quantization", "bytes_a_weight"),
    [
        ("Qwen/Qwen3-8B-AWQ", None, 0.5 + 8 / 128),
        ("Qwen/Qwen3-8B-FP8", None, 1 + 4 / 128),
        ("Qwen/Qwen3-8B", {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, 0.5 + 4 / 128),
        ("Qwen/Qwen3-8B", {"quant_method": "gptq", "bits": 8, "group_size": 32, "sym": False}, 1 + 8 / 32),
    ],
)
def test_a_cpu_reads_stored_weights_without_packages(
    model: str, quantization: dict[str, object] | None, bytes_a_weight: float
) -> None:
    """Codes, fp32 scales a group, and as many zero points times scale; head and embedding in 16 bit."""
    checkpoint = resolve(model) if quantization is None else checkpoint_of(model, quantization_config=quantization)
    plan = make_plan(checkpoint, ON_CPU, plan_request(engine="transformers"))
    linears = 36 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288)
    expected = linears * bytes_a_weight + 2 * (2 * 151936 * 4096)
    assert plan.dtype == "bfloat16"
    assert plan.devices[0].weights_bytes == pytest.approx(expected, rel=0.005)
    assert why_not_served(plan, Packages(dict.fromkeys(BARE, "1"))) is None


def test_4_bit_on_a_cpu_takes_the_calibrated_checkpoint() -> None:
    plan = make_plan(resolve("Qwen/Qwen3-8B"), ON_CPU, plan_request(engine="transformers", quant="4bit"))
    assert (plan.quant.scheme, plan.quant.checkpoint) == ("awq", "Qwen/Qwen3-8B-AWQ")


def test_gptq_with_experts_is_planned_on_a_cpu_and_3_bit_is_refused() -> None:
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}
    request = plan_request(engine="transformers")
    plan = make_plan(checkpoint_of("Qwen/Qwen3-30B-A3B", quantization_config=gptq), ON_CPU, request)
    assert (plan.quant.scheme, plan.fits) == ("gptq-int4", True)
    for model in ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-8B"):
        stored = checkpoint_of(model, quantization_config={**gptq, "bits": 3})
        with pytest.raises(UsageError, match="stored as gptq-int3, and the transformers engine has no kernels"):
            make_plan(stored, ON_CPU, request)


def test_gptq_of_3_bits_is_planned_on_a_card_and_asked_for_by_no_word() -> None:
    """Both were tracebacks."""
    stored = {"quant_method": "gptq", "bits": 3, "group_size": 128}
    config = {**(bundled_config("Qwen/Qwen3-8B") or {}), "quantization_config": stored}
    checkpoint = Checkpoint("m", None, config, ModelSpec.from_config(config, "m"))
    plan = make_plan(checkpoint, DESCRIBED, plan_request(engine="transformers"))
    smaller, larger = (plan_of("Qwen/Qwen3-8B", scheme) for scheme in ("awq", "bf16"))
    assert plan.quant.scheme == "gptq-int3"
    assert plan.devices[0].weights_bytes < smaller.devices[0].weights_bytes < larger.devices[0].weights_bytes
    assert any("gptq-int3 on the transformers engine needs more" in note for note in plan.notes)
    with pytest.raises(UsageError, match="is stored as gptq-int3, and --quant 4bit can't requantize it"):
        make_plan(checkpoint, DESCRIBED, plan_request(engine="transformers", quant="4bit"))
    with pytest.raises(UsageError, match="no kernels for that on this CPU"):
        make_plan(checkpoint, ON_CPU, plan_request(engine="transformers"))


def test_what_a_stored_scheme_lacks_is_its_own_package() -> None:
    there = Packages(dict.fromkeys(BARE | {"transformers", "accelerate"}, "1"))
    checks = engine_checks("transformers")
    assert "compressed-tensors" in str(checks.why_not_stored("w8a8", DESCRIBED, there))
    assert "gptqmodel" in str(checks.why_not_stored("gptq-int4", DESCRIBED, there))
    assert checks.why_not_stored("bnb-nf4", DESCRIBED, there) is None
    assert checks.why_not_stored("gptq-int3", ON_CPU, there) == "no kernels for this CPU"
