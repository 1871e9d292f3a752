"""A child of cpu_anchors.py in OpenVINO's environment: loads a model, then answers each line `streams new_tokens seed`
with the seconds of the prompts and of all, as JSON.

    PYTHON_WITH_OPENVINO_GENAI openvino_streams.py EXPORTED_FOLDER NUM_THREADS
"""

from __future__ import annotations

import json
import sys
import time

import numpy
import openvino_genai
from openvino import Tensor

PROMPT_TOKENS = 128


def main() -> None:
    """Command line."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = 2
    scheduler.max_num_batched_tokens = 1024
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[2])}
    )
    print("ready", flush=True)

    def seconds(ids: list[Tensor], new_tokens: int) -> float:
        config = openvino_genai.GenerationConfig(max_new_tokens=new_tokens, min_new_tokens=new_tokens, ignore_eos=True)
        config.do_sample = False
        start = time.perf_counter()
        pipeline.generate(ids, [config] * len(ids))
        return time.perf_counter() - start

    for line in sys.stdin:
        streams, new_tokens, seed = map(int, line.split())
        rng = numpy.random.default_rng(seed)
        ids = [Tensor(rng.integers(0, 100_000, (1, PROMPT_TOKENS), dtype=numpy.int64)) for _ in range(streams)]
        print(json.dumps([seconds(ids, 1), seconds(ids, new_tokens)]), flush=True)


if __name__ == "__main__":
    main()
