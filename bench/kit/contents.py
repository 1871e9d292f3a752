"""What a machine with a card, torch and transformers lacks, as data: packages with their reason, and what is left out.

A requirement without a version takes the one of constraints.txt; nothing's dependencies are followed, so each package
that is needed stands here. The machine is taken to have torch 2.11 for CUDA 13, transformers 5.17 with what it needs,
and what is common beside them: aiohttp, click, einops, httpx, jinja2, numba, nvidia-ml-py, prometheus-client, psutil,
py-cpuinfo, pyyaml, rich, sentencepiece, tiktoken, uvloop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["ARCHIVES", "PYTHON", "Archive"]

PYTHON = "3.12"
"""Of the machine with the card."""


@dataclass(frozen=True)
class Archive:
    """What is unpacked into one folder there.

    Attributes:
        name: of the folder.
        packages: requirements of pip, each with why it is there.
        left_out: pieces of paths, each with why files that have it are not packed.

    """

    name: str
    packages: Mapping[str, str]
    left_out: Mapping[str, str]


_COMMON = {".pyi": "types, read by no interpreter", "/tests/": "tests of the packages themselves"}
_QSERVE = Archive(
    "qserve",
    packages={
        "transformers==5.19.0": "with 5.17 the row batcher serves: no pages, captured graphs or kernels of ours",
        "bitsandbytes==0.50.2": "LLM.int8, NF4, FP4",
        "httptools": "the gateway reads HTTP with it",
        "llguidance": "answers that follow a grammar, in both engines",
        "msgspec": "the gateway's first look at bodies",
        "pydantic": "requests, in the worker's server",
        "pydantic-core==2.50.4": "pydantic 2.14.3 works with exactly this one",
        "annotated-types": "pydantic imports it",
        "typing-inspection": "pydantic imports it",
        "python-multipart": "uploads of files",
        "starlette": "the worker's server",
        "uvicorn": "the worker's server",
    },
    left_out={
        **_COMMON,
        "libbitsandbytes_cuda11": "another CUDA than the machine's 13.0",
        "libbitsandbytes_cuda12": "another CUDA",
        "libbitsandbytes_cuda132": "another CUDA",
        "libbitsandbytes_rocm": "cards of AMD",
        "libbitsandbytes_xpu": "cards of Intel",
    },
)
_VLLM = Archive(
    "vllm",
    packages={
        "vllm==0.26.0": "the last release for torch 2.11; 0.27.1 and later are built against 2.13",
        "apache-tvm-ffi==0.1.12": "xgrammar 0.2.8 imports it; 0.1.10, which vLLM names, is too old for that",
        "cachetools": "vLLM imports it",
        "cbor2": "hashes of prefixes",
        "compressed-tensors==0.17.0": "imported with any quantization; the one that vLLM names",
        "distro": "openai imports it",
        "fastapi": "the API server",
        "httpcore2": "httpx2 imports it",
        "httpx2": "openai imports it",
        "jiter": "openai imports it",
        "jmespath": "model-hosting-container-standards imports it",
        "loguru": "compressed-tensors imports it",
        "model-hosting-container-standards": "the API server imports it",
        "openai": "types of requests and answers",
        "openai-harmony": "the API server imports it",
        "opentelemetry-api==1.45.2": "opentelemetry-sdk 1.45.2 works with exactly this one",
        "opentelemetry-sdk": "traces: imported whether used or not",
        "opentelemetry-semantic-conventions==0.66b2": "opentelemetry-sdk 1.45.2 works with exactly this one",
        "partial-json-parser": "calls of tools",
        "prometheus-fastapi-instrumentator": "/metrics of the API server",
        "pybase64": "vLLM imports it",
        "pyzmq": "messages between the processes",
        "sniffio": "openai imports it",
        "sse-starlette": "the API server imports it",
        "watchfiles": "certificates of the API server",
        "xgrammar==0.2.8": "answers that follow a grammar: vLLM's default library",
    },
    left_out={
        **_COMMON,
        "vllm_flash_attn/_vllm_fa2_C": "attention for cards before Hopper; Hopper takes FlashAttention 3",
        "vllm_flash_attn/cute": "FlashAttention 4, for Blackwell",
        "third_party/fmha_sm100": "for Blackwell",
        "third_party/deep_gemm": "fp8 products, compiled when they are first used",
        "vllm/_flashmla": "attention of DeepSeek",
        "vllm/vllm-rs": "a router in front of several servers",
        "instrumentator/static": "pages of the API's description",
        ".jpg": "pictures",
    },
)

ARCHIVES = (_QSERVE, _VLLM)
"""In the order in which they are brought: qserve alone is measured with the first."""
