"""Quantized checkpoints of known models, planned by their names where nobody can look at them."""

from __future__ import annotations

import re

import pytest

from qserve.core.hardware import Hardware, parse_gpu
from qserve.core.model_spec import ModelSpec
from qserve.core.quantization_config import read_quantization
from qserve.errors import ModelNotFound, UnknownArchitecture, UsageError
from qserve.hub import resolve
from qserve.hub.named import _SAID, named_config
from qserve.planner import PlanRequest, make_plan
from qserve.units import GIB

CARD = Hardware(parse_gpu("h100"), 256 * GIB, 256 * GIB, 32, disk_free_bytes=1024 * GIB)


@pytest.mark.parametrize(
    ("model", "base", "scheme"),
    [
        ("RedHatAI/Qwen3.6-35B-A3B-NVFP4", "Qwen/Qwen3.6-35B-A3B", "nvfp4"),
        ("nvidia/Qwen3-32B-NVFP4", "Qwen/Qwen3-32B", "nvfp4"),
        ("unsloth/Qwen3.8-27B-NVFP4", "Qwen/Qwen3.8-27B", "nvfp4"),
        ("RedHatAI/Qwen3-8B-FP8-dynamic", "Qwen/Qwen3-8B", "fp8"),
        ("Qwen/Qwen3.8-27B-FP8", "Qwen/Qwen3.8-27B", "fp8"),
        ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a8", "Qwen/Qwen2.5-7B-Instruct", "w8a8"),
        ("RedHatAI/Qwen2.5-7B-Instruct-quantized.w8a16", "Qwen/Qwen2.5-7B-Instruct", "w8a16"),
        ("RedHatAI/Qwen3-14B-quantized.w4a16", "Qwen/Qwen3-14B", "w4a16"),
        ("cyankiwi/Qwen3.5-9B-AWQ-4bit", "Qwen/Qwen3.5-9B", "awq"),
        ("unsloth/Qwen3-8B-unsloth-bnb-4bit", "Qwen/Qwen3-8B", "bnb-nf4"),
        ("syv-ai/Qwen3.8-27B-int4", "Qwen/Qwen3.8-27B", "gptq-int4"),
        ("someone/Qwen3.8-27B-4bit", "Qwen/Qwen3.8-27B", "gptq-int4"),
        ("someone/Qwen3.8-27B-W4A16-G128", "Qwen/Qwen3.8-27B", "w4a16"),
        ("someone/Qwen3.8-27B-FP8-Static", "Qwen/Qwen3.8-27B", "fp8"),
        ("cyankiwi/Qwen3.6-27B-AWQ-BF16-INT4", "Qwen/Qwen3.6-27B", "awq"),
        ("cyankiwi/Qwen3.5-9B-AWQ-BF16-INT8", "Qwen/Qwen3.5-9B", "w8a16"),
        ("someone/Qwen3.8-27B-GPTQ-Pro-4bit-g64", "Qwen/Qwen3.8-27B", "gptq-int4"),
        ("someone/Qwen3.8-27B-W4A16-AWQ", "Qwen/Qwen3.8-27B", "awq"),
        ("someone/Qwen3-8B-abliterated-NVFP4", "Qwen/Qwen3-8B", "nvfp4"),
        ("someone/Qwen3-8B_awq", "Qwen/Qwen3-8B", "awq"),
        ("someone/Qwen3-8B-bnb-8bit", "Qwen/Qwen3-8B", "bnb-int8"),
        ("someone/Qwen3-8B-bitsandbytes-INT8", "Qwen/Qwen3-8B", "bnb-int8"),
        ("someone/Qwen3-8B-merged-NF4", "Qwen/Qwen3-8B", "bnb-nf4"),
        ("someone/Qwen3-8B-AWQ-merged-8bit", "Qwen/Qwen3-8B", "w8a16"),
        ("someone/Qwen3-8B-AutoRound-INT8", "Qwen/Qwen3-8B", "gptq-int8"),
        ("someone/Qwen3.8-27B-BF16-INT4-AutoRound", "Qwen/Qwen3.8-27B", "gptq-int4"),
    ],
)
def test_model_and_packing_by_name(model: str, base: str, scheme: str) -> None:
    found = named_config(model)
    assert found is not None
    assert found[0] == base
    quantization = ModelSpec.from_config(found[1], model).quantization
    assert quantization is not None
    assert quantization.scheme == scheme


def test_what_words_say_is_a_packing_of_an_ending() -> None:
    for words, ending in _SAID:
        said = named_config(f"someone/Qwen3-8B-{'-'.join(words.split())}")
        plain = named_config(f"someone/Qwen3-8B{ending}")
        assert said is not None
        assert said == plain


@pytest.mark.parametrize("model", ["someone/Llama-8B-NVFP4", "Qwen/Qwen3-8B", "Qwen/Qwen3-8B-Weird", "NVFP4"])
def test_other_names_tell_nothing(model: str) -> None:
    assert named_config(model) is None


def test_it_is_planned_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = resolve("someone/Qwen3.6-35B-A3B-NVFP4")
    assert found.guess.startswith("A guess by its name: someone/Qwen3.6-35B-A3B-NVFP4 can't be read here")
    with pytest.raises(ModelNotFound):
        resolve("someone/Llama-8B-NVFP4")


@pytest.mark.parametrize(
    "model", ["someone/Qwen3.8-27B-abliterated", "org/Qwen3.8-27B-MXFP4", "someone/Qwen3.8-27B-AWQ-6Bit"]
)
def test_an_unknown_make_of_a_known_model_is_planned_from_it_in_16_bit(
    monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = resolve(model)
    assert found.parameters == resolve("Qwen/Qwen3.8-27B").parameters
    assert found.spec.quantization is None
    assert "planned as Qwen/Qwen3.8-27B in 16 bit" in found.messages[-1]


# Other bits than a scheme has, both 4 and 8, or a format that is read by no name.
_UNKNOWN = ("MXFP4", "AWQ-6Bit", "int3", "W4A8", "Quark-AWQ-INT4-W4A16", "NVFP4-FP8", "GPTQ-Int4-Int8Mix-8bit", "HQQ")


@pytest.mark.parametrize("ending", _UNKNOWN)
def test_one_that_is_packed_in_an_unknown_way_is_not_packed_again(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = resolve(f"someone/Qwen3-8B-{ending}")
    assert found.spec.quantization is None
    assert f"({found.packed_word}) is not known; for exact figures give its folder" in found.messages[-1]
    for engine in ("vllm", "transformers"):
        plan = make_plan(found, CARD, PlanRequest(engine=engine))
        assert (plan.quant.scheme, plan.quant.in_flight) == ("bf16", False)
        for quant in ("4bit", "fp8", "bnb-nf4"):
            with pytest.raises(
                UsageError, match=f"is packed by its name.*{re.escape(found.packed_word)}.*leave --quant"
            ):
                make_plan(found, CARD, PlanRequest(engine=engine, quant=quant))


@pytest.mark.parametrize("ending", ["abliterated", "fp16", "BF16", "128k", "Thinking-2601", "v2"])
def test_one_of_another_name_may_be_packed_while_loading(monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = resolve(f"someone/Qwen3-8B-{ending}")
    assert found.packed_word == ""
    assert make_plan(found, CARD, PlanRequest(quant="bnb-nf4")).quant.in_flight


def test_an_unknown_name_of_the_makers_own_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="did you mean"):
        resolve("Qwen/Qwen3-8B-Instrct")


@pytest.mark.parametrize(
    ("model", "reader"),
    [
        ("unsloth/Qwen3.6-35B-A3B-MTP-GGUF", r"llama\.cpp and Ollama \(GGUF\)"),
        ("turboderp/Qwen3.8-27B-exl3", r"ExLlama \(exl3\)"),
        ("mlx-community/Qwen3.8-27B-8bit", "Apple's MLX"),
        ("OpenVINO/Qwen3.5-9B-int8-ov", "OpenVINO"),
    ],
)
def test_a_format_that_neither_engine_reads_is_named(monkeypatch: pytest.MonkeyPatch, model: str, reader: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=f"for {reader}.*, which neither engine reads; take Qwen/"):
        resolve(model)


@pytest.mark.parametrize(
    ("model", "planned"),
    [
        ("mlx-community/Qwen3.8-27B-8bit", "Qwen/Qwen3.8-27B --quant int8"),
        ("mlx-community/Qwen3.8-27B-6bit", "Qwen/Qwen3.8-27B --quant int8"),
        ("mlx-community/Qwen3-8B-4bit-DWQ-053125", "Qwen/Qwen3-8B --quant 4bit"),
        ("mlx-community/Qwen3-8B-bf16", "Qwen/Qwen3-8B --quant bf16"),
        ("lmstudio-community/Qwen3-8B-MLX-4bit", "Qwen/Qwen3-8B --quant 4bit"),
        ("lmstudio-community/Qwen3-30B-A3B-Instruct-2507-MLX-8bit", "Qwen/Qwen3-30B-A3B-Instruct-2507 --quant int8"),
        ("Qwen/Qwen3-8B-GGUF", "Qwen/Qwen3-8B --quant 4bit"),
        ("someone/Qwen3-8B-Q8_0-GGUF", "Qwen/Qwen3-8B --quant int8"),
        ("someone/Qwen3-8B-Q4_K_M-GGUF", "Qwen/Qwen3-8B --quant 4bit"),
    ],
)
def test_what_an_apple_chip_reads_is_told_as_it_is_planned_there(
    monkeypatch: pytest.MonkeyPatch, model: str, planned: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match=f"; on an Apple card: --model {planned}$"):
        resolve(model)


def test_what_no_apple_chip_reads_is_not_told_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for model in ("turboderp/Qwen3.8-27B-exl3", "OpenVINO/Qwen3.5-9B-int8-ov"):
        with pytest.raises(ModelNotFound) as told:
            resolve(model)
        assert "Apple card" not in str(told.value)


@pytest.mark.parametrize(("bits", "word"), [(3, "4bit"), (4, "4bit"), (6, "int8"), (8, "int8")])
def test_the_config_that_mlx_writes_is_known_for_what_it_is(bits: int, word: str) -> None:
    with pytest.raises(UnknownArchitecture, match=f"packed for Apple's MLX.*on an Apple card with --quant {word}"):
        read_quantization({"group_size": 64, "bits": bits, "mode": "affine"}, "somewhere")


def test_models_that_were_missing() -> None:
    for model, billions in (("Qwen/Qwen3.5-122B-A10B", 122), ("Qwen/Qwen3-Reranker-8B", 8)):
        assert resolve(model).parameters == pytest.approx(billions * 1e9, rel=0.03)
