"""Why a start failed, from real logs.

The files in logs/ are from vLLM 0.32's CPU build, started with something broken on purpose
(`python scripts/broken_starts.py`) and cut down to the lines around the reason. Lines from cards are quoted from public
threads, whose address stands with each.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qserve.engines.vllm.launch.diagnose import clean, failure_of
from qserve.engines.vllm.launch.failure import FailureKind as Kind
from qserve.units import GIB, MIB
from tests.unit.engines.vllm.builders import plan_of

LOGS = Path(__file__).parent / "logs"

BROKEN_ON_PURPOSE = {
    "arch": (Kind.ARCHITECTURE, "model type qwen9"),
    "arch2": (Kind.ARCHITECTURE, "no model 'Qwen9ForCausalLM'"),
    "bad_template": (Kind.CHAT_TEMPLATE, "chat_template.jinja"),
    "fp8_method": (Kind.QUANTIZATION, "CPU build has no kernels for fp8"),
    "hybrid": (Kind.IMPORT, "needs torchvision for this model"),
    "missing_shard": (Kind.CHECKPOINT, "model-00002-of-00002.safetensors is missing"),
    "no_config": (Kind.CHECKPOINT, "no config.json"),
    "no_plugin": (Kind.MISSING_PLUGIN, "pip install --no-deps vllm-bnb-plugin bitsandbytes"),
    "no_tok": (Kind.CHECKPOINT, "has no tokenizer"),
    "no_weights": (Kind.CHECKPOINT, "/models/no_weights has no weights"),
    "quant_unknown": (Kind.QUANTIZATION, "does not support quantization aqlm"),
    "socket": (Kind.ADDRESS_IN_USE, "socket is taken"),
    "template_path": (Kind.CHAT_TEMPLATE, "no chat template at /nowhere/x.jinja"),
    "too_long": (Kind.LENGTH, "--max-model-len 9999 is more than the 2048 positions"),
    "tool_parser": (Kind.FLAG, "no tool call parser nope"),
    "truncated": (Kind.CHECKPOINT, "damaged or cut short"),
    "unknown_flag": (Kind.FLAG, "does not know --no-such-flag"),
    "seqs_over": (Kind.FLAG, "--max-num-batched-tokens 4 can't hold a token of each of --max-num-seqs 8 requests"),
    "flag_field": (Kind.FLAG, "refuses level in --compilation-config/-cc: Unexpected keyword argument. Change"),
    "flag_folder": (Kind.FLAG, "no folder /x, which --engine-args names"),
    "flag_type": (Kind.FLAG, "vLLM refuses --seed: invalid int value: 'x'"),
    "wrong_shape": (Kind.CHECKPOINT, "512 rows or columns where config.json asks for 640"),
    "kv_huge": (Kind.OUT_OF_MEMORY, "KV cache of 93.13 GiB does not fit into the 19.67 GiB of RAM"),
    "kv_small": (Kind.KV_CACHE_TOO_SMALL, "--max-model-len 256 fits"),
    "kv_util": (
        Kind.MEMORY_TAKEN,
        "14.64 GiB of 23.54 GiB were free when vLLM started, and --gpu-memory-utilization 1.0",
    ),
    "kv_zero": (Kind.KV_CACHE_TOO_SMALL, "Nothing is left for the KV cache"),
}

PUBLIC = (
    (
        "https://github.com/vllm-project/vllm/issues/23192",
        "(EngineCore_0 pid=1810465) ERROR 09-03 11:03:37 [core.py:712] ValueError: Free memory on device "
        "(7.34/139.72 GiB) on startup is less than desired GPU memory utilization (0.9, 125.75 GiB). Decrease GPU "
        "memory utilization or reduce GPU memory used by other processes.",
        Kind.MEMORY_TAKEN,
        "7.34 GiB of 139.72 GiB were free when vLLM started, and --gpu-memory-utilization 0.9 needs 125.75 GiB",
    ),
    (
        "https://github.com/pytorch/pytorch/issues/175666",
        "(EngineCore_DP0 pid=6940) ValueError: Free memory on device cuda:1 (19.77/22.05 GiB) on startup is less than "
        "desired GPU memory utilization (0.9, 19.84 GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes.",
        Kind.MEMORY_TAKEN,
        "19.77 GiB of 22.05 GiB were free",
    ),
    (
        "https://github.com/vllm-project/vllm/pull/38270",
        "(Worker_TP1 pid=509811) ERROR 03-26 18:27:04 [multiproc_executor.py:949] ValueError: max_num_seqs (1024) "
        "exceeds available Mamba cache blocks (512). Each decode sequence requires one Mamba cache block, so CUDA "
        "graph capture cannot proceed. Please lower max_num_seqs to at most 512 or increase gpu_memory_utilization.",
        Kind.TOO_MANY_SEQUENCES,
        "--max-num-seqs 512 fits",
    ),
    (
        "https://github.com/vllm-project/vllm/issues/27508",
        "(EngineCore_DP0 pid=8884) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 0 "
        "has a total capacity of 79.11 GiB of which 140.75 MiB is free. Process 3270336 has 78.96 GiB memory in use.",
        Kind.OUT_OF_MEMORY,
        "786.00 MiB were needed when 140.75 MiB of 79.11 GiB were free",
    ),
    (
        "https://github.com/huggingface/trl/pull/3310",
        "(EngineCore_0 pid=2095608) ERROR 04-17 23:05:06 [core.py:390] RuntimeError: NCCL error: invalid usage (run "
        "with NCCL_DEBUG=WARN for details)",
        Kind.NCCL,
        "NCCL: invalid usage",
    ),
    (
        "https://github.com/vllm-project/vllm/issues/12847",
        "RuntimeError: Failed to infer device type",
        Kind.DEVICE,
        "make setup ACCELERATOR=cpu",
    ),
    (
        "https://github.com/vllm-project/vllm/issues/15329",
        'ERROR 03-22 09:50:04 [core.py:340]     raise RuntimeError("Failed to find C compiler. Please specify via CC '
        'environment variable.")',
        Kind.TOOLCHAIN,
        "there is no C compiler (Debian, Ubuntu: apt install g++",
    ),
    (
        "https://github.com/vllm-project/vllm/issues/14075 (gcc's own words)",
        "/tmp/tmpx1/main.c:5:10: fatal error: Python.h: No such file or directory\ncompilation terminated.",
        Kind.TOOLCHAIN,
        "Python's headers are not here",
    ),
    (
        "vllm 0.32, v1/engine/core_client.py",
        "TimeoutError: Timed out waiting for engine core processes to start. This is often caused by slow weight "
        "loading for large models. Waited 600s (configured by VLLM_ENGINE_READY_TIMEOUT_S).",
        Kind.SLOW_LOADING,
        "vLLM gave up after 600 s",
    ),
)


def log(name):
    return (LOGS / f"{name}.log").read_text().splitlines()


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("TemplateError: a system turn comes first", "refuses a conversation of one turn of the user (a system turn"),
        ("UndefinedError: 'x' is undefined", "template is broken ('x' is undefined)"),
    ],
)
def test_a_template_that_vllm_tries_when_it_starts(raised: str, said: str) -> None:
    """vLLM 0.32, generate/structured_decisions/strategies.py: what it raises but for ValueError ends the server."""
    text = f"""  File "/x/strategies.py", line 209, in _generation_prompt
    probe = tokenizer.apply_chat_template(
  File "<template>", line 1, in top-level template code
jinja2.exceptions.{raised}"""
    failure = failure_of(text.splitlines())
    assert failure.kind is Kind.CHAT_TEMPLATE and said in failure.message


@pytest.mark.parametrize("name", BROKEN_ON_PURPOSE)
def test_what_was_broken_on_purpose_is_named(name):
    kind, words = BROKEN_ON_PURPOSE[name]
    failure = failure_of(log(name))
    assert (failure.kind, words in failure.message) == (kind, True), failure


def test_every_log_has_its_expectation():
    assert {file.stem for file in LOGS.glob("*.log")} == set(BROKEN_ON_PURPOSE)


@pytest.mark.parametrize(("address", "line", "kind", "words"), PUBLIC, ids=[case[0] for case in PUBLIC])
def test_what_people_met_on_cards_is_named(address, line, kind, words):
    noise = ["(EngineCore pid=1) Traceback (most recent call last):", '(EngineCore pid=1)   File "x.py", line 1, in f']
    after = ["RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"]
    failure = failure_of([*noise, line, *after])
    assert (failure.kind, words in failure.message) == (kind, True), failure
    assert failure.said in line


@pytest.mark.parametrize("name", [*BROKEN_ON_PURPOSE])
def test_the_message_is_for_people(name):
    """A sentence or two, no stack trace, nothing left to fill in."""
    message = failure_of(log(name)).message
    assert 40 < len(message) < 400
    assert "Traceback" not in message
    assert not re.search(r"\{\w*\}|None|\\n", message)
    assert message.endswith(".")


def test_memory_failures_hold_the_plans_numbers_beside_the_engines():
    plan = plan_of("Qwen/Qwen3-8B", "rtx-4090", quant="bf16", max_model_len=8192, max_num_seqs=64)
    failure = failure_of([PUBLIC[3][1]], plan)
    assert "Planned on NVIDIA GeForce RTX 4090: weights 15." in failure.message
    assert "8192 tokens a request, 64 requests at once" in failure.message
    assert failure_of(log("socket"), plan).message == failure_of(log("socket")).message


def test_out_of_memory_before_and_after_the_cache_was_made():
    sized = "(EngineCore pid=1) INFO 09-22 12:15:36 [kv_cache_utils.py:2146] GPU KV cache size: 567,978 tokens"
    line = PUBLIC[3][1]
    assert failure_of([sized, line]).during_cache
    assert not failure_of([line]).during_cache


def test_the_engines_numbers_are_kept_for_a_second_try():
    failure = failure_of(log("kv_small"))
    assert failure.max_model_len == 256
    failure = failure_of(log("kv_huge"))
    assert (failure.needed_bytes, failure.available_bytes) == (int(93.13 * GIB), int(19.67 * GIB))
    assert failure.during_cache
    assert failure_of([PUBLIC[2][1]]).max_num_seqs == 512
    failure = failure_of([PUBLIC[3][1]])
    assert (failure.needed_bytes, failure.available_bytes) == (786 * MIB, int(140.75 * MIB))


@pytest.mark.parametrize(
    ("code", "words"), [(-9, "when RAM runs out"), (-4, "without the instructions"), (1, "did not start: Worker proc")]
)
def test_a_process_that_was_killed(code, words):
    """Words of v1/executor/multiproc_executor.py, 0.28 to 0.32."""
    line = "(EngineCore pid=9) ERROR 11-21 08:18:50 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "
    failure = failure_of([f"{line}unexpectedly (exit code: {code}), shutting down executor."])
    assert words in failure.message


def test_an_unknown_reason_is_quoted_without_the_stack():
    lines = [
        "(EngineCore pid=1) ERROR 09-22 12:15:36 [core.py:712] Traceback (most recent call last):",
        '(EngineCore pid=1) ERROR 09-22 12:15:36 [core.py:712]   File "a.py", line 1, in b',
        "(EngineCore pid=1) ERROR 09-22 12:15:36 [core.py:712] ZeroDivisionError: nobody has seen this",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    failure = failure_of(lines)
    assert failure.kind is Kind.UNKNOWN
    assert failure.message == "vLLM did not start: ZeroDivisionError: nobody has seen this"
    assert failure_of([]).message == "vLLM did not start: nothing"


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("(EngineCore pid=5096) ERROR 11-21 08:18:50 [core.py:712] ValueError: x", "ValueError: x"),
        ("(Worker_TP0 pid=447) INFO 08-14 14:07:22 [gpu_worker.py:563] Available", "Available"),
        ("(VllmWorker rank=0 pid=105) INFO 04-29 01:07:40 [loader.py:458] Loading", "Loading"),
        ("ERROR 11-04 18:02:56 [v1/executor/multiproc_executor.py:597] NCCL", "NCCL"),
        ("ValueError: x", "ValueError: x"),
    ],
)
def test_prefixes_are_taken_away(line, rest):
    assert clean(line) == rest


def test_a_value_that_a_config_refuses_is_named_by_its_flag() -> None:
    """vLLM 0.32's own words; "Value error" is pydantic's, and no field."""
    lines = [
        "api_server.py: error: argument --structured-outputs-config: 1 validation error for StructuredOutputsConfig",
        "  Value error, disable_any_whitespace is only supported for xgrammar and guidance backends. "
        "[type=value_error, input_value={'disable_any_whitespace': True}, input_type=dict]",
    ]
    assert failure_of(lines).message == (
        "vLLM refuses --structured-outputs-config: disable_any_whitespace is only supported for xgrammar and guidance "
        "backends. Change it in --engine-args."
    )
