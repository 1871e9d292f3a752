"""What the log of a start tells: phases with seconds, and what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from qserve.engines.vllm.launch.log import LogFigures, figures_of, phase_of
from qserve.units import GIB

CPU_START = (Path(__file__).parent / "cpu_start.log").read_text().splitlines()

# https://github.com/aivrar/vllm-windows-build/issues/17, two of its logs: a 27B hybrid on one card, September 2026.
ONE_CARD = """\
INFO 09-21 12:50:12 [model_runner.py:404] Model loading took 17.7 GiB memory and 12.003756 seconds
INFO 09-21 12:50:28 [backends.py:1155] Dynamo bytecode transform time: 10.92 s
INFO 09-21 12:50:44 [backends.py:393] Compiling a graph for compile range (1, 2048) takes 15.65 s
""".splitlines()
ONE_CARD_LATER = """\
(EngineCore pid=5744) INFO 09-22 12:15:29 [monitor.py:81] Initial profiling/warmup run took 0.05 s
(EngineCore pid=5744) WARNING 09-22 12:15:31 [kv_cache_utils.py:1326] Add 3 padding layers, may waste at most 6.25%
Capturing CUDA graphs (PIECEWISE): 100%|███████████████████████████████| 3/3 [00:03<00:00,  1.04s/it]
Capturing CUDA graphs (FULL): 100%|████████████████████████████████████| 1/1 [00:00<00:00,  4.98it/s]
(EngineCore pid=5744) INFO 09-22 12:15:35 [model_runner.py:960] Graph capturing finished in 4 secs, took 0.11 GiB
(EngineCore pid=5744) INFO 09-22 12:15:36 [gpu_worker.py:625] Available KV cache memory: 6.13 GiB
""".splitlines()

# https://github.com/noonghunna/club-3090/issues/104: two ranks. https://github.com/vllm-project/vllm/issues/38820.
TWO_RANKS = """\
(Worker_TP0 pid=34322) INFO 05-06 20:59:57 [default_loader.py:384] Loading weights took 24.84 seconds
(Worker_TP0 pid=34322) INFO 05-06 20:59:59 [gpu_model_runner.py:4879] Model loading took 12.66 GiB memory and \
31.657031 seconds
(Worker_TP0 pid=104) INFO 05-09 10:37:04 [gpu_model_runner.py:6100] Estimated CUDA graph memory: 0.13 GiB total
(Worker_TP1 pid=105) INFO 05-09 10:37:04 [gpu_model_runner.py:6100] Estimated CUDA graph memory: 0.13 GiB total
(Worker_TP0 pid=104) INFO 05-09 10:37:04 [gpu_worker.py:460] Available KV cache memory: 11.06 GiB
""".splitlines()

# https://github.com/aivrar/vllm-windows-build/issues/4: two lines for the cache, as up to 0.25.
OLDER = """\
INFO 05-26 21:34:12 [kv_cache_utils.py:1710] GPU KV cache size: 396,928 tokens
INFO 05-26 21:34:12 [kv_cache_utils.py:1711] Maximum concurrency for 131,072 tokens per request: 3.03x
INFO 05-26 21:34:14 [gpu_model_runner.py:6243] Graph capturing finished in 2 secs, took 0.11 GiB
INFO 05-26 21:34:14 [core.py:299] init engine (profile, create kv cache, warmup model) took 13.70 s \
(compilation: 7.28 s)
""".splitlines()


def test_a_start_on_the_cpu():
    figures = figures_of(CPU_START)
    assert figures.version == "0.32.0"
    assert (figures.kv_cache_tokens, figures.max_concurrency) == (34176, 33.38)
    assert (figures.weights_seconds, figures.engine_seconds) == (0.07, 0.31)
    assert figures.weights_bytes is figures.cuda_graphs_bytes is figures.activations_bytes is None
    assert list(figures.phase_seconds) == [
        "starting vLLM",
        "starting the engine's processes",
        "loading weights",
        "making the KV cache",
        "starting the server",
    ]
    assert sum(figures.phase_seconds.values()) == 32


def test_a_start_on_a_card():
    figures = figures_of(ONE_CARD)
    assert figures.weights_bytes == round(17.7 * GIB)
    assert figures.phase_seconds == {"starting vLLM": 16}  # no line says when the server was there
    figures = figures_of(ONE_CARD_LATER)
    assert figures.kv_cache_bytes == round(6.13 * GIB)
    assert figures.cuda_graphs_bytes == round(0.11 * GIB)
    assert (figures.profile_seconds, figures.graphs_seconds) == (0.05, 4)
    assert figures.phase_seconds == {"starting vLLM": 2}


def test_several_ranks():
    figures = figures_of(TWO_RANKS)
    assert figures.weights_bytes == round(12.66 * GIB)
    assert figures.weights_seconds == 24.84
    assert figures.cuda_graphs_estimated_bytes == round(0.13 * GIB)
    assert figures.kv_cache_bytes == round(11.06 * GIB)
    ranks = ["Model loading took 14.2474 GiB and 558.868858 seconds", "Model loading took 14.3 GiB and 500.1 seconds"]
    assert figures_of(ranks).weights_bytes == round(14.3 * GIB)


def test_other_releases():
    figures = figures_of(OLDER)
    assert (figures.kv_cache_tokens, figures.max_concurrency, figures.engine_seconds) == (396_928, 3.03, 13.7)
    assert (figures.cuda_graphs_bytes, figures.graphs_seconds) == (round(0.11 * GIB), 2)


def test_activations_stand_in_the_line_that_suggests_a_cache_size():
    line = (
        "Actual usage is 6.5 GiB for consumed memory (weights + non-torch), 1.25 GiB for peak activation, and 0.5 GiB "
        "for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1`"
    )
    assert figures_of([line]).activations_bytes == round(1.25 * GIB)
    older = (
        "Actual usage is 6.5 GiB for weight, 1.25 GiB for peak activation, 0.1 GiB for non-torch memory, and 0.5 GiB "
    )
    assert figures_of([older]).activations_bytes == round(1.25 * GIB)


def test_nothing_is_made_up():
    assert figures_of([]) == LogFigures()
    assert figures_of(["INFO:     Waiting for application startup."]) == LogFigures()


def test_kernels_that_are_compiled_are_a_phase_of_the_start():
    """Lines of vLLM 0.32's kernel_warmup.py; on a card alone."""
    assert phase_of("(EngineCore pid=9) INFO 11-29 12:00:00 [kernel_warmup.py:176] JIT kernel warmup starting.") == (
        "compiling kernels"
    )
    assert phase_of("INFO 11-29 12:00:40 [kernel_warmup.py:189] JIT kernel warmup finished in 40.00s.") is None


def test_a_start_over_new_year():
    lines = [
        "(A pid=1) INFO 12-31 23:59:58 [api_utils.py:347] version 0.32.0",
        "(A pid=1) INFO 01-01 00:00:08 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config",
    ]
    assert figures_of(lines).phase_seconds == {"starting vLLM": 10}


def test_phases_are_told_as_they_begin():
    told = [phase for line in CPU_START if (phase := phase_of(line))]
    assert told == [
        "starting the engine's processes",
        "loading weights",
        "making the KV cache",
        "starting the server",
        "ready",
    ]


READ = (
    "Initializing a V1 LLM engine (v",
    "Starting to load model",
    "Model loading took %s GiB memory and",
    "Loading weights took %.2f seconds",
    "Starting torch.compile",
    "JIT kernel warmup starting",
    "Capturing CUDA graphs",
    "Starting vLLM server on",
    "KV cache size: %s tokens",
    "Maximum concurrency for %s tokens per request: %.2fx",
    "Available KV cache memory: %s GiB",
    "Graph capturing finished in %.0f secs, took %.2f GiB",
    "Estimated CUDA graph memory: %.2f GiB total",
    "torch.compile took %.2f s in total",
    "Initial profiling/warmup run took %.2f s",
    "init engine (profile, create kv cache, warmup model) took ",
    "GiB for consumed memory (weights + non-torch), ",
)
FAILURES = (
    "max seq len",
    "estimated maximum model length is",
    "exceeds available Mamba cache ",
    "is less than desired GPU memory utilization ",
    "requested memory for kv",
    "No available memory for the cache blocks",
    "Unknown quantization method: ",
    "is not supported for the current GPU. Minimum ",
    "quantization is currently not supported in",
    "was supported in vLLM until ",
    "are not supported for now. ",
    "invalid tool call parser: ",
    "appears path-like, ",
    "Cannot find any model weights with `",
    "Bfloat16 is only supported on GPUs ",
    "Failed to infer device type, ",
    "NCCL error: ",
)


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_installed_engine_still_says_it_so():
    """Lines that only a card brings about are held to the engine's source."""
    (root,) = find_spec("vllm").submodule_search_locations
    folders = (
        "v1",
        "compilation",
        "entrypoints",
        "model_executor/model_loader",
        "model_executor/models/registry.py",
        "model_executor/warmup",
        "config",
        "platforms",
        "renderers",
        "distributed/device_communicators",
    )
    files = [
        file
        for name in folders
        for path in [Path(root) / name]
        for file in ([path] if path.is_file() else path.rglob("*.py"))
    ]
    source = "\n".join(file.read_text() for file in files)
    assert not [words for words in (*READ, *FAILURES) if words not in source]
