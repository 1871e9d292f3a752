"""One real vLLM for the whole folder: in 4 bit, by bitsandbytes' plugin, with a LoRA adapter, and refused once for its
plan's cache; its worker is killed at the end.

Its tokenizer has tokens that the embedding has no rows for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import openai
import pytest

from qserve.demo import chat_model_path
from tests.tiny.lora import write_adapter
from tests.tiny.rowless import with_rowless_tokens
from tests.tiny.serving.served import START_LIMIT_S, Service
from tests.tiny.serving.vllm_processes import NOT_COMPILED

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

NAMES = ("demo", "another/name")
ADAPTER = "tuned"
MAX_MODEL_LEN = 2048
FLAGS = (
    "--engine",
    "vllm",
    "--quant",
    "4bit",
    "--enforce-eager",
    "--kv-cache-memory-bytes",
    "64MiB",
    "--max-model-len",
    str(MAX_MODEL_LEN),
    "--max-num-seqs",
    "8",
    "--max-num-batched-tokens",
    "512",
    *("--resume-wait", "0"),  # a killed engine ends its streams at once
    *(word for name in NAMES for word in ("--served-model-name", name)),
)


# The worker in a process of its own, as several ranks have it: elsewhere it shares the engine's.
_APART = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", **NOT_COMPILED}


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    program = (sys.executable, str(Path(__file__).with_name("overdrawn.py")))
    folder = tmp_path_factory.mktemp("vllm-4bit")
    model = with_rowless_tokens(Path(chat_model_path()), folder / "chat")
    adapter = write_adapter(folder / "adapter")
    room = "--enable-lora --max-loras 3 --max-lora-rank 8"
    lora = ("--engine-args", f"{room} --lora-modules {ADAPTER}={adapter}")
    one = Service(("--model", str(model), *FLAGS, *lora), folder, _APART, program)
    yield one.until_ready(2 * START_LIMIT_S)  # the first plan is refused
    one.end_as_told()


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120) as one:
        yield one
