"""One real vLLM behind one real gateway, for the whole folder: `qserve up` with a key.

QSERVE_VLLM_FLAGS="--replicas 2 --gateway-processes 2" holds more of them to the same (docs/results/scale.md).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import openai
import pytest

from tests.tiny.serving.served import Service
from tests.tiny.serving.vllm_processes import NOT_COMPILED, RESTART_LIMIT_S

if TYPE_CHECKING:  # its types take a second, in every process that collects these tests
    import anthropic


KEY = "sk-of-the-test"
MAX_MODEL_LEN = 1024
NUM_PLACES = 4


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """In float32, so that equality with lm-eval's own transformers model can be exact."""
    one = Service(
        (
            "--model",
            "demo",
            "--engine",
            "vllm",
            "--dtype",
            "float32",
            "--enforce-eager",
            "--max-model-len",
            str(MAX_MODEL_LEN),
            "--max-num-seqs",
            str(NUM_PLACES),
            "--kv-cache-memory-bytes",
            "64MiB",
            "--resume-wait",
            str(RESTART_LIMIT_S),
            "--api-key",
            KEY,
            *os.environ.get("QSERVE_VLLM_FLAGS", "").split(),
        ),
        tmp_path_factory.mktemp("vllm-served"),
        NOT_COMPILED,
    )
    yield one.until_ready()
    if one.process.poll() != -signal.SIGKILL:  # by the last test
        one.end_as_told()


@pytest.fixture(scope="session")
def http(service: Service) -> Iterator[httpx.Client]:
    """Plain HTTP with the key."""
    headers = {"authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=120) as one:
        yield one


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[openai.OpenAI]:
    """The unmodified client; no retries, so that each error shows."""
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=KEY, max_retries=0, timeout=120) as one:
        yield one


@pytest.fixture(scope="session")
def messages(service: Service) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client, as it is."""
    import anthropic

    with anthropic.Anthropic(base_url=service.url, api_key=KEY, max_retries=0, timeout=120) as one:
        yield one
