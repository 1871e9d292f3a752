"""The bytes that vLLM's own sampler holds at its peak, counted on the real one: the constants of the first runner."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from qserve.engines.vllm.plan.constants import SAMPLED_BYTES_FIRST_RUNNER, SAMPLER_BYTES_TRITON

COUNTED = Path(__file__).with_name("sampler_on_vllm.py")


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_the_first_runners_sampler_holds_what_the_plan_counts() -> None:
    """Bytes per row and vocabulary entry, where top-k and top-p mask in place as Triton's do."""
    done = subprocess.run([sys.executable, str(COUNTED)], capture_output=True, text=True, check=True, timeout=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["profiled"] == pytest.approx(SAMPLER_BYTES_TRITON, rel=0.001)
    assert found["seeds"] == found["profiled"]
    assert found["logprobs"] == pytest.approx(SAMPLER_BYTES_TRITON + 4, rel=0.001)
    assert found["penalties and logprobs"] == pytest.approx(SAMPLED_BYTES_FIRST_RUNNER, rel=0.001)
