"""A plugin of pytest for the peers' tests: where they would start their own server, they are given this one's address.

vLLM's tests take `RemoteOpenAIServer` from their `tests.utils`, which is a copy of this module; SGLang's take
`popen_launch_server` and names of models from packages that need its CUDA kernels, and are replaced here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import types
import unittest
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import anthropic
import openai

__all__ = ["VLLM_PATH", "RemoteOpenAIServer", "RemoteVLLMServer"]

URL, MODEL, SOURCE = (os.environ.get(f"PEERS_{name}", "") for name in ("URL", "MODEL", "SOURCE"))
VLLM_PATH = SOURCE
KEY = "sk-none"


class RemoteOpenAIServer:
    """As the tests of vLLM use it: of its arguments none is read."""

    DUMMY_API_KEY = KEY

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.url_root = URL

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def url_for(self, *parts: str) -> str:
        return "/".join((URL, *(part.strip("/") for part in parts if part)))

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, **{"timeout": 120, **options})

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, **{"timeout": 120, **options})

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0, **{"timeout": 120, **options})

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0, **{"timeout": 120, **options})


RemoteVLLMServer = RemoteOpenAIServer


def __getattr__(name: str) -> Any:
    """Whatever else vLLM's `tests.utils` holds: marks and decorators of its own machines."""
    if name.startswith(("__", "pytest")):
        raise AttributeError(name)
    return _as_it_is


def _as_it_is(*arguments: Any, **options: Any) -> Any:
    return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else lambda function: function


def _tokenizer(name: str, *arguments: Any, **options: Any) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def _launched(*arguments: Any, **options: Any) -> Any:
    return types.SimpleNamespace(pid=0)


_RERANKED = [{"query": "ping", "documents": ["pong", "a stone"][:count]} for count in (1, 2)]
# Of SGLang's packages what its tests of the API use.
_KNOWN: dict[str, Any] = {
    "CustomTestCase": unittest.TestCase,
    "DEFAULT_URL_FOR_TEST": URL,
    "popen_launch_server": _launched,
    "get_tokenizer": _tokenizer,
    "kill_process_tree": lambda *arguments, **options: None,
    "is_rust_server_built": lambda: False,
    "is_in_ci": lambda: False,
    "is_in_amd_ci": lambda: False,
    "CustomLogitProcessor": object,
    "TEST_RERANK_QUERY_DOCS": _RERANKED,
}


class _Replaced(types.ModuleType):
    """A module of SGLang's that the tests import and do not test."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _KNOWN:
            return _KNOWN[name]
        return MODEL if "MODEL" in name and name.isupper() else 600 if name.startswith("DEFAULT_") else mock.MagicMock()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Of `sglang` only its kits of tests are its own."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "sglang" or name.startswith("sglang.test.kits"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Replaced(spec.name)
        for below in ("python/sglang", "sglang"):  # a checkout's folder, an sdist's
            inner = str(Path(SOURCE, below, *spec.name.split(".")[1:]))
            module.__path__ = [*module.__path__, inner]
        return module

    def exec_module(self, module: types.ModuleType) -> None: ...


def pytest_configure(config: Any) -> None:
    """Before any test is imported."""
    if not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    without_downloads()


def without_downloads() -> None:
    """Adapters that a fixture would fetch: the tests that ask for them say so by a 404."""
    try:
        from vllm.transformers_utils import repo_utils
    except ImportError:
        return
    hub: Callable[[], Any] = mock.MagicMock
    repo_utils.hf_api = hub
