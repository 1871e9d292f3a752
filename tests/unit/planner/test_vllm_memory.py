"""vLLM's account on cards that differ: graphs as they are captured, shared memory, old cards, several ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qserve.core.dimensions import tensors_of
from qserve.core.hardware import Hardware, known_gpus, parse_gpu
from qserve.engines.vllm.plan.defaults import default_max_num_batched_tokens, default_max_num_seqs
from qserve.engines.vllm.plan.encoder import ProfiledItems, encoder_peak
from qserve.engines.vllm.plan.terms.activations import sampler_bytes
from qserve.engines.vllm.plan.trial import Captures
from qserve.engines.vllm.plan.versions import VllmVersion
from qserve.planner import make_plan, plan_request
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.planner.plan import Plan
from qserve.units import GIB, MIB
from tests.unit.planner.test_make_plan import checkpoint_of, plan_of
from tests.unit.planner.test_weights import VLLM, spec_of

NEWEST = VllmVersion.parse("0.32.0")

IMAGE = ProfiledItems("image", 16384, 1)


def term(plan: Plan, name: str) -> int:
    return next(term.num_bytes for term in plan.devices[0].terms if term.name == name)


@pytest.mark.parametrize(("seqs", "drafted", "logged"), [(2, 3, 5), (2, 5, 6), (4, 3, 7)])
def test_drafted_tokens_count_in_the_sizes_of_graphs(seqs: int, drafted: int, logged: int) -> None:
    """The logs of three starts with MTP and an fp8 cache: piecewise graphs only."""
    assert Captures(seqs, 8192, drafted, piecewise_only=True).num_graphs == logged


def test_the_default_sizes_are_those_of_the_log() -> None:
    """51 piecewise and 35 full graphs at 256 sequences; 51 of each from 512 on."""
    assert Captures(256, 2048).num_graphs == 51 + 35
    assert Captures(1024, 8192).num_graphs == 51 + 51
    assert Captures(8, 2048).num_graphs == 5 + 4


def test_a_gpu_that_shares_the_cpus_memory_gets_the_small_defaults() -> None:
    """NVML states no total there, and vLLM falls back; the engine's own processes are charged."""
    gb10, h200 = known_gpus()["gb10"], known_gpus()["h200"]
    assert gb10.shares_ram
    assert not h200.shares_ram
    assert (default_max_num_seqs(gb10, NEWEST), default_max_num_batched_tokens(gb10, NEWEST, 4096)) == (256, 2048)
    assert (default_max_num_seqs(h200, NEWEST), default_max_num_batched_tokens(h200, NEWEST, 4096)) == (1024, 8192)
    assert term(plan_of("Qwen/Qwen3-0.6B", "gb10"), "non-torch") >= 2 * GIB


def test_the_first_engine_takes_a_whole_prompt_up_to_32768_tokens() -> None:
    card, version = known_gpus()["rtx-4090"], VllmVersion.parse("0.7.3")
    lengths = 1024, 10000, 32768, 32769, 131072
    assert [default_max_num_batched_tokens(card, version, n) for n in lengths] == [2048, 10000, 32768, 2048, 2048]


def test_an_old_card_loads_no_flash_attention() -> None:
    """0.05 GiB beside torch in vLLM 0.20 on a T4, 0.25 on newer ones."""
    old = term(plan_of("Qwen/Qwen3-0.6B", "t4", engine_version="0.20.0"), "non-torch")
    new = term(plan_of("Qwen/Qwen3-0.6B", "l4", engine_version="0.20.0"), "non-torch")
    assert old < 100 * MIB < new


def test_several_ranks_split_the_drafters_projection() -> None:
    spec = spec_of("Qwen/Qwen3.6-27B")
    fc = tuple(tensor for tensor in tensors_of(spec) if tensor.name.startswith("mtp.fc"))
    drafting = replace(VLLM, with_mtp=True, round_blocks=False)
    assert isinstance(drafting, Loading)
    whole, half = (rank_weights(spec, fc, replace(drafting, tensor_parallel_size=ranks)) for ranks in (1, 2))
    assert whole == 2 * half == 2 * spec.hidden_size * spec.hidden_size * 2


def test_ranks_add_their_vision_outputs_beside_them() -> None:
    """On 4 ranks the encoder's MLP is narrower than its output and the sum of it over the ranks."""
    spec = spec_of("Qwen/Qwen3.6-27B")
    assert spec.vision is not None
    patches = 16384 * spec.vision.spatial_merge_size**2
    narrow = spec.vision.intermediate_size // 4
    difference = encoder_peak(spec, IMAGE, 1) - encoder_peak(spec, IMAGE, 4)
    assert difference == patches * 2 * (2 * spec.vision.intermediate_size - narrow - 2 * spec.vision.hidden_size)


def test_ranks_of_an_old_release_gather_the_encoders_heads() -> None:
    """q, k and v of all ranks, sorted into a second tensor, beside a rank's own (vllm#28271): 1.37 GiB are 1.8."""
    spec = spec_of("Qwen/Qwen2.5-VL-72B-Instruct")
    assert spec.vision is not None
    widest = 3 * 1176 + 2 * 1280 + 6 * 1280 + 3 * 1280 // 4
    assert encoder_peak(spec, IMAGE, 4, gathers_heads=True) == 65536 * 2 * widest
    assert encoder_peak(spec, IMAGE, 4) / GIB == pytest.approx(1.37, abs=0.01)
    assert encoder_peak(spec, IMAGE, 1, gathers_heads=True) == encoder_peak(spec, IMAGE, 1)
    assert VllmVersion.parse("0.11.2").gathers_encoder_heads and not VllmVersion.parse("0.12.0").gathers_encoder_heads


@pytest.mark.parametrize(("release", "low", "high"), [("0.20.0", 0.15, 0.6), ("0.28.0", 0.2, 0.9)])
def test_two_cards_without_nvlink_are_charged_by_release_and_not_by_the_largest_start(
    release: str, low: float, high: float
) -> None:
    """1.27 GiB of a pair of RTX 5090 in 0.20 were the graphs, which that release takes from the cache already."""
    plan = plan_of("Qwen/Qwen3.5-9B", "rtx-3090:2", engine_version=release, tensor_parallel_size=2, max_num_seqs=8)
    found = next(term for term in plan.devices[0].terms if term.name == "non-torch")
    assert found.low_bytes >= low * GIB - MIB * 10
    assert found.num_bytes <= 0.5 * GIB and found.high_bytes <= high * GIB + MIB


def test_a_kept_compile_cache_leaves_the_copy_of_the_embedding_to_the_kv_cache() -> None:
    fixed = {"engine_version": "0.27.1", "max_model_len": 4096, "max_num_seqs": 256}
    cold, warm = (plan_of("Qwen/Qwen3-8B", "rtx-4090", warm_compile_cache=kept, **fixed) for kept in (False, True))
    gained = warm.devices[0].kv_cache_bytes - cold.devices[0].kv_cache_bytes
    assert gained / GIB == pytest.approx(0.98, abs=0.05)  # logged: 35,792 and 43,040 tokens of 144 KiB, 0.995 GiB


@pytest.mark.parametrize(
    ("release", "has_flashinfer", "logit_bytes"),
    [("0.8.0", True, 38), ("0.10.1", False, 38), ("0.10.1", True, 14), ("0.11.0", True, 38), ("0.19.0", True, 14)],
)
def test_what_samples_decides_the_bytes_of_a_logit(release: str, has_flashinfer: bool, logit_bytes: int) -> None:
    """0.10.1 on an A100 with FlashInfer left 1.0 GiB more for the cache than sorted logits would have."""
    version = replace(VllmVersion.parse(release), has_flashinfer=has_flashinfer)
    assert sampler_bytes(spec_of("Qwen/Qwen3-8B"), version) == logit_bytes


@pytest.mark.parametrize(("gpu", "saved"), [("a100-80gb", True), ("t4", False)])
def test_flashinfer_counts_where_it_is_installed_and_has_kernels(gpu: str, saved: bool) -> None:
    plans = [
        make_plan(
            checkpoint_of("Qwen/Qwen3-0.6B"),
            Hardware(parse_gpu(gpu), 64 * GIB, 64 * GIB, 8, packages=frozenset(packages)),
            plan_request(engine="vllm", engine_version="0.10.1", max_num_seqs=256),
        )
        for packages in ((), ("flashinfer-python",))
    ]
    without, beside = (plan.devices[0].activations_bytes for plan in plans)
    assert without - beside == (24 * 256 * 151936 if saved else 0)
