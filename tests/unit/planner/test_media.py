"""Vision models in vLLM: what start-up encodes, what that takes, and the flags that limit it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.core.checkpoint import Checkpoint
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.engines.vllm.plan.encoder import embedding_bytes, encoder_peak, longest_with_same_profile, profiled_tokens
from qserve.engines.vllm.plan.media import MediaLimits, parse_media
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.units import GIB

QWEN2_5_VL, QWEN3_VL = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
ANY = MediaLimits()


def spec_of(name):
    return ModelSpec.from_config(bundled_config(name), name)


def plan_of(name, gpu, **fixed):
    config = bundled_config(name)
    checkpoint = Checkpoint(name, None, config, ModelSpec.from_config(config, name))
    machine = Hardware(parse_gpu(gpu), 256 * GIB, 256 * GIB, 16)
    return make_plan(checkpoint, machine, plan_request(engine="vllm", quant="bf16", **fixed))


@pytest.mark.parametrize(
    ("length", "tokens"), [(4096, 16384), (32767, 16384), (32768, 32768), (65536, 65536), (128000, 114688)]
)
def test_a_video_grows_with_max_model_len_up_to_14_frames(length, tokens):
    assert profiled_tokens(spec_of(QWEN2_5_VL), ANY, length, 256, 2048) == tokens


def test_of_qwen3_vl_an_image_is_the_largest_at_any_length():
    for length in (4096, 262144):
        assert profiled_tokens(spec_of(QWEN3_VL), ANY, length, 256, 2048) == 16384
    no_images = MediaLimits(images=0)
    assert profiled_tokens(spec_of(QWEN3_VL), no_images, 4096, 256, 2048) == 12288


def test_limits_are_read():
    spec = spec_of(QWEN2_5_VL)
    no_video = parse_media('{"image": 2, "video": 0}', None)
    assert profiled_tokens(spec, no_video, 128000, 256, 2048) == 16384
    assert profiled_tokens(spec, parse_media('{"image": 0, "video": 0}', None), 128000, 256, 2048) == 0
    small = parse_media('{"video": {"count": 0}}', '{"max_pixels": 1003520}')  # 1280 tokens of 28 × 28 pixels
    assert profiled_tokens(spec, small, 32768, 256, 2048) == 1280
    assert profiled_tokens(spec, small, 32768, 256, 8192) == 6 * 1280  # as many as fit into a step
    assert parse_media(None, '{"images_kwargs": {"size": {"longest_edge": 784}}}').image_pixels == 784


def test_the_longest_length_of_a_profile():
    spec = spec_of(QWEN2_5_VL)
    assert longest_with_same_profile(spec, ANY, 8192, 256, 2048) == 32767
    assert longest_with_same_profile(spec, ANY, 40000, 256, 2048) == 49151
    assert longest_with_same_profile(spec, ANY, 120000, 256, 2048) == 128000
    assert longest_with_same_profile(spec, MediaLimits(videos=0), 8192, 256, 2048) == 128000


def test_the_peak_by_hand():
    # 65536 patches of 1176 values (fp32 and 16 bit), 1280 wide twice, gate and up and their product, down's output
    assert encoder_peak(spec_of(QWEN2_5_VL), 16384) == 65536 * 2 * (3 * 1176 + 2 * 1280 + 3 * 3420 + 1280)
    # Qwen3-VL keeps the features of three inner layers, a quarter of 4096 a patch each
    qwen3 = spec_of(QWEN3_VL)
    assert encoder_peak(qwen3, 16384) == 65536 * 2 * (3 * 1536 + 2 * 1152 + 2 * 4304 + 3 * 1024)
    assert embedding_bytes(qwen3, 16384) == 4 * 16384 * 4096 * 2
    assert encoder_peak(spec_of("Qwen/Qwen3-8B"), 16384) == 0


def test_a_plan_stays_where_its_profile_holds():
    """Beyond 32767 tokens vLLM would encode a video twice as long at start-up."""
    plan = plan_of(QWEN2_5_VL, "a100-80gb")
    assert plan.fits and plan.workload.max_model_len == 32767
    assert any("--limit-mm-per-prompt '{\"video\": 0}'" in note for note in plan.notes)
    longer = plan_of(QWEN2_5_VL, "a100-80gb", limit_mm_per_prompt='{"video": 0}')
    assert longer.workload.max_model_len == 128000
    assert longer.devices[0].activations_bytes == plan.devices[0].activations_bytes
    asked = plan_of(QWEN2_5_VL, "a100-80gb", max_model_len=128000)
    assert asked.devices[0].activations_bytes > 6 * plan.devices[0].activations_bytes


def test_a_default_length_that_does_not_fit_is_helped_by_leaving_videos_out():
    plan = plan_of(QWEN2_5_VL, "rtx-5090", max_model_len=128000, max_num_seqs=16)
    assert not plan.fits
    assert any("video" in suggestion.command for suggestion in plan.suggestions)


def test_what_is_left_out_of_the_profile_takes_nothing():
    fixed = {"max_model_len": 8192, "enforce_eager": True}
    whole = plan_of(QWEN2_5_VL, "rtx-4090", **fixed)
    unprofiled = plan_of(QWEN2_5_VL, "rtx-4090", **fixed, skip_mm_profiling=True)
    text_only = plan_of(QWEN2_5_VL, "rtx-4090", **fixed, language_model_only=True)
    assert unprofiled.devices[0].activations_bytes < whole.devices[0].activations_bytes
    assert unprofiled.devices[0].weights_bytes == whole.devices[0].weights_bytes
    assert whole.devices[0].weights_bytes - text_only.devices[0].weights_bytes > 1.2 * GIB  # 676,550,144 parameters
    assert "--skip-mm-profiling" in unprofiled.engine_args


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"limit_mm_per_prompt": "image=4"}, "is not a JSON object; write for example"),
        ({"limit_mm_per_prompt": '{"picture": 1}'}, "names picture; it takes image, video and audio"),
        ({"limit_mm_per_prompt": '{"image": -1}'}, "must be a whole number, 0 or more"),
        ({"mm_processor_kwargs": "[1]"}, "--mm-processor-kwargs .* is not a JSON object"),
        ({"mm_processor_kwargs": '{"max_pixels": "many"}'}, "max_pixels is 'many'"),
    ],
)
def test_what_can_t_be_read_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        plan_request(**flags)


def test_among_the_engines_own_flags_they_are_counted():
    base = ["--model", QWEN2_5_VL, "--gpu", "a100-80gb", "--quant", "bf16", "--json"]
    limit = '{"video": 0}'
    by_flags = CliRunner().invoke(command, [*base, "--limit-mm-per-prompt", limit])
    by_words = CliRunner().invoke(command, [*base, "--engine-args", f"--limit-mm-per-prompt '{limit}'"])
    assert by_flags.exit_code == by_words.exit_code == 0
    plans = [json.loads(done.stdout) for done in (by_words, by_flags)]
    assert [plan.pop("next_command").startswith("qserve up ") for plan in plans] == [True, True]
    assert plans[0] == plans[1]
