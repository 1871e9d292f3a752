"""What a run teaches: factors with which the simulation takes what the requests took; and the CPU as a card."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest

from qserve.core.hardware import CpuFeatures, Device, Hardware
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization.weight_format import BF16
from qserve.hub import resolve
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.planner.speed.bands import Metric, band_of
from qserve.planner.speed.calibrate import residual_of
from qserve.planner.speed.calibration import CorrectedSteps, Measured, ResidualKey, SpeedResidual, StepFactors
from qserve.planner.speed.estimate import replica_of
from qserve.planner.speed.figures import figures_of
from qserve.planner.speed.load import Load
from qserve.planner.speed.served import ServedRequest, replayed
from qserve.planner.speed.simulate import simulate
from qserve.planner.speed.simulated import Limits
from qserve.planner.speed.steps.times import StepTimes
from qserve.planner.speed.terms.cpu import LARGE_WEIGHTS, SMALL_WEIGHTS, CpuRates, assumed_rates, cpu_card, cpu_format
from qserve.planner.speed.terms.engine_costs import EngineCosts, engine_costs
from qserve.planner.speed.terms.formats import weight_format
from qserve.planner.speed.terms.kernels import gemm_form
from qserve.planner.speed.terms.network import rank_network
from tests.unit.planner.speed.as_served import served_of

LIMITS = Limits(16, 2048, 100_000)
COSTS = EngineCosts("test", 0, 0, 0, 0, intake_ms=1.0)
KEY = ResidualKey("an engine", "1.0", "a card", "a/model", "bf16", 1)


@dataclass(frozen=True)
class Linear:
    """5 ms a step and 0.2 more a sequence; 0.5 ms a token of a prompt."""

    costs: EngineCosts = COSTS

    def decode_s(self, batch: int, context: float) -> float:
        return 0.005 + 0.0002 * batch

    def mixed_s(self, batch: int, context: float, chunks: list[tuple[int, int]]) -> float:
        return 0.0005 * sum(new for new, _ in chunks)


def served_by(factors: StepFactors, *loads: Load) -> list[ServedRequest]:
    """What a machine that is off by `factors` makes of one load after the other."""
    served: list[ServedRequest] = []
    for load in loads:
        start = max((one.ends_s for one in served), default=-9.0) + 10.0
        found = served_of(simulate(CorrectedSteps(Linear(), factors), load, LIMITS).finished)
        served += [replace(one, at_s=one.at_s + start) for one in found]
    return served


ONE, FOUR, SIXTEEN = (Load(300, 40, concurrency=streams, num_prompts=4 * streams) for streams in (1, 4, 16))


@pytest.mark.parametrize("load", [Load(100, 40, rps=2.0, num_prompts=40), FOUR])
def test_a_slower_machine_is_found_to_be_slower_by_so_much(load: Load) -> None:
    slower = StepFactors(((1, 1.6),), ((100, 1.3),))
    found = residual_of([(Linear(), served_by(slower, load))], LIMITS)
    assert found is not None
    assert all(factor == pytest.approx(1.6, rel=0.06) for _, factor in found.decode)
    assert all(factor == pytest.approx(1.3, rel=0.06) for _, factor in found.prefill)


@pytest.mark.parametrize(
    "machine",
    [
        StepFactors(((1, 1.25), (4, 0.85), (16, 0.95)), ((300, 1.1), (4800, 0.8))),
        StepFactors(((1, 0.8), (4, 1.2), (16, 1.1)), ((300, 0.9), (1200, 1.3)), intake=3.0),
    ],
)
def test_a_learned_plan_takes_what_the_run_took_at_each_of_its_loads(machine: StepFactors) -> None:
    """Also where four sequences are faster than planned, and one and sixteen are slower."""
    loads = (ONE, FOUR, SIXTEEN)
    found = residual_of([(Linear(), served_by(machine, *loads))], LIMITS)
    assert found is not None
    for load in loads:
        planned, measured = (
            figures_of(simulate(CorrectedSteps(Linear(), factors), load, LIMITS), load) for factors in (found, machine)
        )
        assert planned.tpot_ms.mean == pytest.approx(measured.tpot_ms.mean, rel=0.05)
        assert planned.ttft_ms.mean == pytest.approx(measured.ttft_ms.mean, rel=0.05)
        assert planned.output_tokens_per_s == pytest.approx(measured.output_tokens_per_s, rel=0.05)


def test_what_one_load_teaches_holds_for_others() -> None:
    found = residual_of([(Linear(), served_by(StepFactors(((1, 1.4),)), FOUR))], LIMITS)
    assert found is not None
    steps = CorrectedSteps(Linear(), found)
    assert steps.decode_s(64, 300) == pytest.approx(1.4 * Linear().decode_s(64, 300), rel=0.03)


def test_factors_go_straight_between_what_was_seen() -> None:
    steps = CorrectedSteps(Linear(), StepFactors(((1, 1.0), (4, 4.0))))
    assert steps.decode_s(2, 100) == pytest.approx(2 * Linear().decode_s(2, 100))
    assert steps.decode_s(9, 100) == pytest.approx(4 * Linear().decode_s(9, 100))


def test_a_machine_that_slowed_down_meanwhile_teaches_no_more_than_one_that_did_not() -> None:
    """Requests are simulated on the steps of the machine as it was when they came."""
    served = served_by(StepFactors(((1, 1.2),), ((300, 1.2),)), ONE, FOUR)
    early, late = served[: ONE.total_prompts], served[ONE.total_prompts :]
    slow = CorrectedSteps(Linear(), StepFactors(((1, 2.0),), ((300, 2.0),)))
    # Twice as slow, and over before the others come.
    slowed = [replace(one, at_s=2 * one.at_s - 100, ttft_s=2 * one.ttft_s, e2e_s=2 * one.e2e_s) for one in early]
    found = residual_of([(slow, slowed), (Linear(), late)], LIMITS)
    assert found is not None
    assert all(factor == pytest.approx(1.2, rel=0.05) for _, factor in (*found.decode, *found.prefill))


def test_short_answers_that_others_prompts_held_up_teach_nothing_of_steps() -> None:
    """A warm-up of four tokens: whether a prompt fell into it decides its time a token, not how fast steps are."""
    held_up = [replace(one, e2e_s=one.e2e_s + 3.0) for one in served_by(StepFactors(), replace(FOUR, output_tokens=4))]
    true = [replace(one, at_s=one.at_s + 500.0) for one in served_by(StepFactors(((1, 1.2),)), FOUR)]
    found = residual_of([(Linear(), held_up), (Linear(), true)], LIMITS)
    assert found is not None
    steps = CorrectedSteps(Linear(), found)
    assert steps.decode_s(4, 300) == pytest.approx(1.2 * Linear().decode_s(4, 300), rel=0.06)


def test_too_few_requests_and_factors_beyond_belief_teach_nothing() -> None:
    served = served_by(StepFactors(((1, 50.0),)), ONE)
    assert residual_of([(Linear(), served[:2])], LIMITS) is None
    assert residual_of([(Linear(), served)], LIMITS) is None


def test_a_closed_loop_is_replayed_as_one_on_a_machine_of_another_speed() -> None:
    served = served_by(StepFactors(), FOUR)
    slow = CorrectedSteps(Linear(), StepFactors(((1, 2.0),), ((1, 2.0),), 2.0))
    pairs = list(replayed(slow, LIMITS, served))
    assert len(pairs) == len(served)
    for one, planned in pairs:
        assert (one.input_tokens, one.output_tokens) == (planned.input_tokens, planned.output_tokens)
        assert planned.e2e_s == pytest.approx(2 * one.e2e_s, rel=0.05)


@pytest.mark.parametrize("metric", ["tpot", "throughput"])
def test_after_learning_a_cpu_keeps_the_band_that_its_rounds_repeat_by(metric: Metric) -> None:
    """Wider than a card's, and never wider than before it learned."""
    before, learned = (band_of(metric, "cpu", is_borrowed=False, is_learned=one) for one in (False, True))
    card = band_of(metric, "other", is_borrowed=False, is_learned=True)
    assert before.low <= learned.low < card.low
    assert card.high < learned.high <= before.high


def test_the_run_of_the_same_server_counts() -> None:
    mine = SpeedResidual(KEY, StepFactors(((1, 1.2),)), 10, "b")
    key = ResidualKey("an engine", "2.0", "a card", "a/model", "bf16", 1)
    other = SpeedResidual(key, StepFactors(((1, 3.0),)), 10, "c")
    assert Measured(residuals=(other, mine)).residual_for(KEY) is mine
    assert Measured(residuals=(other,)).residual_for(KEY) is None


def test_a_cpus_step_is_what_the_throughput_page_measured() -> None:
    """docs/results/throughput.md: 44.4 GB/s and 880 GFLOP/s; 56, 66 and 105 ms a step, within a fifth."""
    config = bundled_config("Qwen/Qwen3-0.6B")
    assert config is not None
    network = rank_network(ModelSpec.from_config(config, "Qwen/Qwen3-0.6B"), weight_format("bf16", ()))
    costs = engine_costs("transformers-cpu-calls")
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), CpuRates(44.4e9, 880e9, 2), costs)
    steps = StepTimes(card, network, costs)
    for batch, context, seconds in ((1, 144, 0.056), (8, 144, 0.066), (8, 816, 0.105)):
        assert steps.decode_s(batch, context) == pytest.approx(seconds, rel=0.2)


def test_an_unmeasured_cpu_says_so() -> None:
    hardware = Hardware((), 1 << 35, 1 << 34, 8, CpuFeatures("a CPU", frozenset({"avx512_bf16"})))
    rates = assumed_rates(hardware)
    assert not rates.is_measured
    assert cpu_card(hardware.cpu_device, rates, engine_costs("vllm-cpu")).like


def test_an_unmeasured_cpu_multiplies_as_its_instructions_do() -> None:
    """The wider they are the faster; ordered by what was measured of one core each."""
    asked = [{"sse2"}, {"avx2", "fma"}, {"avx2", "fma", "avx512_vnni"}, {"avx2", "fma", "avx512_vnni", "avx512_bf16"}]
    found = [
        assumed_rates(Hardware((), 1 << 35, 1 << 34, 8, CpuFeatures("a CPU", frozenset(flags)))).gemm_flop_per_s
        for flags in asked
    ]
    assert found == sorted(set(found))


MEASURED = CpuRates(
    40e9,
    800e9,
    2,
    linear_ps=((1, 80.0), (4, 84.0), (16, 120.0), (64, 260.0), (256, 820.0)),
    fewer=CpuRates(25e9, 420e9, 1, linear_ps=((1, 130.0), (16, 210.0), (256, 1500.0))),
    at_unix_s=9.0,
)


def test_products_take_what_was_measured_of_them() -> None:
    """To a tenth, at any number of rows; an engine that leaves a core to its server has what the others do."""
    weights = 4096 * 4096
    for era, rates in (("transformers-cpu", MEASURED), ("vllm-cpu", MEASURED.fewer)):
        assert rates is not None
        card = cpu_card(Device("a CPU", "cpu", 1 << 34), MEASURED, engine_costs(era))
        for rows, ps in rates.linear_ps:
            planned_us = gemm_form(card, BF16, 4096, 4096).us(rows)
            assert planned_us == pytest.approx(weights * ps / 1e6, rel=0.1)


def test_norms_of_a_prompt_take_what_was_measured_of_them() -> None:
    """Of vLLM, which runs them one by one; per byte more where activations no longer stay in caches."""
    assert MEASURED.fewer is not None
    fewer = replace(MEASURED.fewer, unfused_ps=((1, 900.0), (64, 6400.0), (1024, 409600.0)))
    rates, spec = replace(MEASURED, fewer=fewer), resolve("Qwen/Qwen3-0.6B").spec
    for era, is_changed in (("vllm-cpu", True), ("transformers-cpu", False)):
        costs = engine_costs(era)
        cards = [cpu_card(Device("a CPU", "cpu", 1 << 34), one, costs) for one in (MEASURED, rates)]
        before, after = (StepTimes(card, rank_network(spec, BF16), costs) for card in cards)
        for rows, ps in fewer.unfused_ps[1:]:
            nbytes = rank_network(spec, BF16).unfused_bytes
            assumed = rows * nbytes / (25e9 * 0.5)
            more = after.mixed_s(0, 0, [(rows, 0)]) - before.mixed_s(0, 0, [(rows, 0)])
            assert more == pytest.approx(nbytes * ps * 1e-12 - assumed if is_changed else 0.0, rel=1e-6, abs=1e-9)
        assert after.decode_s(16, 500) == before.decode_s(16, 500)
    assert CpuRates.from_json(json.loads(json.dumps(rates.to_json()))) == rates


def test_between_two_measured_numbers_of_rows_products_go_straight() -> None:
    """Four rows may take no longer than one, which a curve through the ends does not know."""
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), MEASURED, engine_costs("transformers-cpu"))
    form = gemm_form(card, BF16, 1000, 1000)
    assert [form.us(rows) for rows in (1, 4, 10, 256, 512)] == pytest.approx([80.0, 84.0, 102.0, 820.0, 1640.0])
    fp32 = cpu_format("fp32", MEASURED, engine_costs("transformers-cpu"))
    assert gemm_form(card, fp32, 1000, 1000).us(1) > 120.0, "twice the bytes, of which nothing was measured"


def test_a_product_costs_what_matrices_of_its_size_were_measured_to() -> None:
    """What begins and ends one is shared by fewer weights in a small one; the time goes straight through two sizes."""
    large = tuple((rows, 0.8 * ps) for rows, ps in MEASURED.linear_ps)
    coded = (("int8", ((1, 50.0), (256, 850.0))), ("int8-large", ((1, 40.0), (256, 840.0))))
    rates, costs = replace(MEASURED, large_ps=large, coded_ps=coded), engine_costs("transformers-cpu")
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), rates, costs)
    small, big = SMALL_WEIGHTS * 80e-6, LARGE_WEIGHTS * 64e-6
    for share in (-0.1, 0.0, 0.5, 1.0, 9.0):
        weights = round(SMALL_WEIGHTS + share * (LARGE_WEIGHTS - SMALL_WEIGHTS)) // 1024
        us = gemm_form(card, BF16, weights, 1024).us(1)
        assert us == pytest.approx(small + share * (big - small), rel=1e-3), share
    cached = replace(rates, large_ps=tuple((rows, 1.25 * ps) for rows, ps in MEASURED.linear_ps))
    card_with_caches = cpu_card(Device("a CPU", "cpu", 1 << 34), cached, costs)
    for weights, ps in ((SMALL_WEIGHTS // 9, 80.0), (9 * LARGE_WEIGHTS, 100.0)):
        us = gemm_form(card_with_caches, BF16, weights // 1024, 1024).us(1)
        assert us == pytest.approx(weights * ps / 1e6, rel=1e-3), "a small one may stay in caches"
    int8 = cpu_format("bnb-int8", rates, costs)
    assert gemm_form(card, int8, 8192, 2048).us(1) == pytest.approx(LARGE_WEIGHTS * 40e-6)
    assert CpuRates.from_json(json.loads(json.dumps(rates.to_json()))) == rates


def test_weights_in_int8_and_4_bit_take_what_was_measured_of_them() -> None:
    rates = replace(MEASURED, coded_ps=(("4bit", ((1, 30.0), (256, 900.0))), ("int8", ((1, 50.0), (256, 850.0)))))
    costs = engine_costs("transformers-cpu")
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), rates, costs)
    for scheme, ps in (("bnb-nf4", 30.0), ("awq", 30.0), ("bnb-int8", 50.0), ("bf16", 80.0)):
        form = gemm_form(card, cpu_format(scheme, rates, costs), 4096, 4096)
        assert form.us(1) == pytest.approx(4096 * 4096 * ps / 1e6, rel=0.1)
    assert cpu_format("bnb-int8", MEASURED, costs) == weight_format("bnb-int8", ()), "none was measured"
    unknown = CpuRates(40e9, 400e9, 4, is_measured=False)
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), unknown, costs)
    one, several = (
        [gemm_form(card, cpu_format(scheme, unknown, costs), 4096, 4096).us(rows) for scheme in ("bnb-nf4", "bf16")]
        for rows in (1, 4)
    )
    assert one[0] < one[1], "fewer bytes, on a CPU that nobody measured too"
    assert several[0] < several[1]


def test_exact_activations_are_planned_by_products_of_their_own() -> None:
    """They take other instructions; of a CPU where they were not measured they are what it has."""
    both = (("4bit", ((1, 30.0), (256, 400.0))), ("4bit-exact", ((1, 30.0), (256, 900.0))))
    costs = engine_costs("transformers-cpu")
    rates = replace(MEASURED, coded_ps=both)
    card = cpu_card(Device("a CPU", "cpu", 1 << 34), rates, costs)
    for rows, is_exact, ps in ((1, False, 30.0), (1, True, 30.0), (256, False, 400.0), (256, True, 900.0)):
        form = gemm_form(card, cpu_format("bnb-nf4", rates, costs, is_exact=is_exact), 4096, 4096)
        assert form.us(rows) == pytest.approx(4096 * 4096 * ps / 1e6)
    before = replace(MEASURED, coded_ps=both[:1])
    assert cpu_format("bnb-nf4", before, costs, is_exact=True) == cpu_format("bnb-nf4", before, costs)
    machine = Hardware((), 1 << 36, 1 << 36, 2)
    plan = make_plan(resolve("demo"), machine, plan_request(engine="transformers", quant="4bit"))
    rounded, exact = (
        replica_of(replace(plan, cpu_activations=which), resolve("demo").spec, machine.cpu_device, Measured(cpu=rates))
        for which in ("int8", "exact")
    )
    assert exact.steps.decode_s(256, 1) > rounded.steps.decode_s(256, 1)
    assert exact.steps.decode_s(1, 1) == rounded.steps.decode_s(1, 1)


def test_rates_are_kept_as_they_were_measured() -> None:
    assert CpuRates.from_json(json.loads(json.dumps(MEASURED.to_json()))) == MEASURED
    with pytest.raises(KeyError):
        CpuRates.from_json({"read_bytes_per_s": 1.0})
