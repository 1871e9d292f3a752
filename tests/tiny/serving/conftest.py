"""Services that the tests of this folder share: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from qserve.demo import chat_model_path
from tests.tiny.serving.plain_transformers import Reference
from tests.tiny.serving.served import Service


def _session_service(tmp_path_factory: pytest.TempPathFactory, name: str, *arguments: str) -> Iterator[Service]:
    service = Service(("--model", "demo", *arguments), tmp_path_factory.mktemp(name))
    try:
        yield service.until_ready()
    finally:
        status = service.end()
    assert status == 0, service.output


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo in float32, so that equality with plain transformers can be exact."""
    yield from _session_service(tmp_path_factory, "fp32", "--dtype", "float32")


@pytest.fixture(scope="session")
def bf16_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The demo as its checkpoint says: bfloat16."""
    yield from _session_service(tmp_path_factory, "bf16")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """`start("--flag", …)`: a service of the demo for one test, which may kill it."""
    services = []

    def begin(*arguments: str, model: str = "demo", **environment: str) -> Service:
        service = Service(("--model", model, *arguments), tmp_path / f"s{len(services)}", environment)
        services.append(service)
        return service

    yield begin
    for service in services:
        service.end()


@pytest.fixture(scope="session")
def client(service: Service) -> Iterator[openai.OpenAI]:
    """The unmodified client; no retries, so that each error shows."""
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120) as one:
        yield one


@pytest.fixture(scope="session")
def demo() -> Path:
    """The folder that `--model demo` means."""
    return chat_model_path()


@pytest.fixture(scope="session")
def plain(demo: Path) -> Reference:
    """The demo in plain transformers, in this process, in float32: what the served one is held to."""
    return Reference.load(demo)
