"""Vision models in vLLM: what start-up encodes, what that takes, and the flags that limit it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from qserve.cli.plan.command import command
from qserve.core.checkpoint import Checkpoint
from qserve.core.dimensions import tensors_of
from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.core.tensors import Tensor
from qserve.engines.vllm.plan.encoder import (
    NO_ITEMS,
    ProfiledItems,
    embedding_bytes,
    encoder_peak,
    longest_with_same_profile,
    profiled_items,
    takes_media,
)
from qserve.engines.vllm.plan.media import MediaLimits, parse_media
from qserve.errors import UsageError
from qserve.hub.bundled import bundled_config
from qserve.planner import make_plan, plan_request
from qserve.planner.memory.weights import Loading, rank_weights
from qserve.units import GIB

QWEN2_5_VL, QWEN3_VL = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
ANY = MediaLimits()
IMAGE = ProfiledItems("image", 16384, 1)


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
    assert profiled_items(spec_of(QWEN2_5_VL), ANY, length, 256, 2048).total == tokens


def test_a_video_of_qwen3_omni_has_smaller_frames():
    """At 65536 tokens 62,720: vllm-project/vllm-omni#240."""
    assert profiled_items(spec_of("Qwen/Qwen3-Omni-30B-A3B-Instruct"), ANY, 65536, 256, 2048).total == 62720


def test_of_qwen3_vl_an_image_is_the_largest_at_any_length():
    for length in (4096, 262144):
        assert profiled_items(spec_of(QWEN3_VL), ANY, length, 256, 2048).total == 16384
    no_images = MediaLimits(images=0)
    assert profiled_items(spec_of(QWEN3_VL), no_images, 4096, 256, 2048).total == 12288


def test_limits_are_read():
    spec = spec_of(QWEN2_5_VL)
    no_video = parse_media('{"image": 2, "video": 0}', None)
    assert profiled_items(spec, no_video, 128000, 256, 2048).total == 16384
    assert profiled_items(spec, parse_media('{"image": 0, "video": 0}', None), 128000, 256, 2048).total == 0
    small = parse_media('{"video": {"count": 0}}', '{"max_pixels": 1003520}')  # 1280 tokens of 28 × 28 pixels
    assert profiled_items(spec, small, 32768, 256, 2048).total == 1280
    assert profiled_items(spec, small, 32768, 256, 8192).total == 6 * 1280  # as many as fit into a step
    assert parse_media(None, '{"images_kwargs": {"size": {"longest_edge": 784}}}').image_pixels == 784


def test_the_longest_length_of_a_profile():
    spec = spec_of(QWEN2_5_VL)
    assert longest_with_same_profile(spec, ANY, 8192, 256, 2048) == 32767
    assert longest_with_same_profile(spec, ANY, 40000, 256, 2048) == 49151
    assert longest_with_same_profile(spec, ANY, 120000, 256, 2048) == 128000
    assert longest_with_same_profile(spec, MediaLimits(videos=0), 8192, 256, 2048) == 128000


def test_the_peak_by_hand():
    # 65536 patches of 1176 values (fp32 and 16 bit), 1280 wide twice, gate and up and their product, down's output
    assert encoder_peak(spec_of(QWEN2_5_VL), IMAGE) == 65536 * 2 * (3 * 1176 + 2 * 1280 + 3 * 3420 + 1280)
    # Qwen3-VL keeps the features of three inner layers, a quarter of 4096 a patch each
    qwen3 = spec_of(QWEN3_VL)
    assert encoder_peak(qwen3, IMAGE) == 65536 * 2 * (3 * 1536 + 2 * 1152 + 2 * 4304 + 3 * 1024)
    assert embedding_bytes(qwen3, 16384) == 4 * 16384 * 4096 * 2
    assert encoder_peak(spec_of("Qwen/Qwen3-8B"), IMAGE) == 0


@pytest.mark.parametrize(
    ("model", "limits", "kind", "tokens", "count"),
    [
        ("Qwen/Qwen2-Audio-7B-Instruct", ANY, "audio", 750, 10),
        ("Qwen/Qwen3-ASR-0.6B", ANY, "audio", 390, 21),  # of models that read nothing else the tokens are counted
        ("Qwen/Qwen2.5-Omni-7B", ANY, "video", 16384, 1),
        ("Qwen/Qwen2.5-Omni-7B", MediaLimits(images=0, videos=0), "audio", 750, 10),
        ("Qwen/Qwen3-Omni-30B-A3B-Instruct", MediaLimits(images=0, videos=0), "audio", 750, 10),
        ("Qwen/Qwen2-Audio-7B-Instruct", MediaLimits(images=0), "audio", 750, 10),
    ],
)
def test_audio_is_profiled_where_nothing_else_is_larger(model, limits, kind, tokens, count):
    items = profiled_items(spec_of(model), limits, 8192, 256, 8192)
    assert items == ProfiledItems(kind, tokens, count)
    assert takes_media(spec_of(model), limits)


def test_an_audio_model_takes_none_where_none_is_allowed():
    spec, none = spec_of("Qwen/Qwen3-ASR-0.6B"), parse_media('{"audio": 0}', None)
    assert not takes_media(spec, none)
    assert profiled_items(spec, none, 8192, 256, 8192) == NO_ITEMS
    assert encoder_peak(spec, NO_ITEMS) == 0


def test_the_peak_of_audio_by_hand():
    # Whisper's: 3000 frames of 128 bins, a mask of 1500², 1500 positions of the stream twice, fc1 and its GELU
    whisper = spec_of("Qwen/Qwen2-Audio-7B-Instruct")
    item = 3 * 3000 * 128 + 1500**2 + 1500 * 2 * (1280 + 5120)
    assert encoder_peak(whisper, ProfiledItems("audio", 750, 10)) == 10 * item * 2
    assert encoder_peak(whisper, ProfiledItems("audio", 750, 10), 4) == 10 * item * 2  # whole on every rank
    # later: 30 chunks an item, 480 channels of 64 × 50 and a quarter of that, both twice, of 500 chunks at most
    audio = spec_of("Qwen/Qwen3-ASR-0.6B")
    few, many = ProfiledItems("audio", 390, 5), ProfiledItems("audio", 390, 21)
    assert encoder_peak(audio, few) == (5 * 3 * 3000 * 128 + 5 * 150 * 480 * 64 * 25) * 2
    assert encoder_peak(audio, many) == (21 * 3 * 3000 * 128 + 5 * 500 * 480 * 64 * 25) * 2


def test_ranks_share_the_layers_that_vllm_wrote_itself():
    for model, is_shared in (("Qwen/Qwen3-ASR-1.7B", True), ("Qwen/Qwen2-Audio-7B-Instruct", False)):
        spec = spec_of(model)
        audio = [tensor for tensor in tensors_of(spec) if tensor.role == "audio"]
        loading = Loading("bfloat16")
        whole, half = (rank_weights(spec, audio, replace(loading, tensor_parallel_size=ranks)) for ranks in (1, 2))
        assert (half < whole) is is_shared
        assert rank_weights(spec, audio, replace(loading, tensor_parallel_size=2, whole_audio=True)) == whole


def test_two_ranks_of_an_earlier_release_have_the_audio_encoder_whole():
    """30.3338 GiB a rank, by vllm-project/vllm-omni#240."""
    plan = plan_of("Qwen/Qwen3-Omni-30B-A3B-Instruct", "a100-80gb:2", engine_version="0.12.0", tensor_parallel_size=2)
    assert plan.devices[0].weights_bytes / GIB == pytest.approx(30.33, rel=0.01)


def test_a_talker_is_not_loaded():
    spec = spec_of("Qwen/Qwen2.5-Omni-7B")
    talker = [Tensor(f"{part}.a.weight", "BF16", (8, 8), 128) for part in ("talker.model", "token2wav", "code2wav")]
    assert {tensor.role for tensor in talker} == {"talker"}
    assert rank_weights(spec, talker, Loading("bfloat16")) == 0


def test_one_table_of_an_asr_model_is_loaded():
    """vLLM 3.87 GiB by the card of vrfai/qwen3asr-fp8, where the files have a second table."""
    plan = plan_of("Qwen/Qwen3-ASR-1.7B", "rtx-4090")
    assert plan.devices[0].weights_bytes / GIB == pytest.approx(3.87, abs=0.02)
    text_only = plan_of("Qwen/Qwen3-ASR-1.7B", "rtx-4090", language_model_only=True)
    assert plan.devices[0].weights_bytes - text_only.devices[0].weights_bytes == pytest.approx(
        2 * 317_477_504, rel=0.01
    )
    assert any("audio encoder is loaded" in note for note in plan.notes)


def test_the_transformers_engine_refuses_what_it_has_no_class_for():
    for model, kind in (("Qwen/Qwen3-ASR-0.6B", "audio"), (QWEN3_VL, "images"), ("Qwen/Qwen2.5-Omni-3B", "audio")):
        base = ["--model", model, "--gpu", "h100", "--engine", "transformers"]
        refused = CliRunner().invoke(command, base)
        assert isinstance(refused.exception, UsageError)
        assert f"{model} reads {kind}, and the transformers engine loads language" in str(refused.exception)


QWEN_1 = {
    "architectures": ["QWenLMHeadModel"],
    "model_type": "qwen",
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 151936,
    "seq_length": 8192,
}


def test_the_first_qwen_fits_only_where_something_runs_it():
    """Its class comes with its checkpoints, and vLLM dropped it."""
    spec = ModelSpec.from_config(QWEN_1, "Qwen-7B")
    checkpoint = Checkpoint("Qwen-7B", None, QWEN_1, spec)
    machine = Hardware(parse_gpu("h100"), 256 * GIB, 256 * GIB, 16)
    with pytest.raises(UsageError, match="qserve does not run code that comes with a checkpoint"):
        make_plan(checkpoint, machine, plan_request(engine="transformers"))
    with pytest.raises(UsageError, match=r"QWenLMHeadModel left vLLM in 0\.23, and 0\.32\.0 is planned"):
        make_plan(checkpoint, machine, plan_request(engine="vllm"))
    assert make_plan(checkpoint, machine, plan_request(engine="vllm", engine_version="0.22.0")).fits


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
