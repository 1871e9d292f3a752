"""lm-eval through the gateway gives what it gives when it asks vLLM itself, and what transformers gives in process."""

from __future__ import annotations

import os
import socket
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from qserve.demo import chat_model_path
from qserve.evaluation.server import ServedModel, inspect_server
from tests.processes import environment
from tests.tiny.serving.served import Service
from tests.tiny.serving.thinking import EVALS, check_scores, check_thinking_budget
from tests.tiny.vllm_served.conftest import KEY

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")

LIMIT = 40
TASKS = {
    "qserve_demo_choice": "acc,none",
    "qserve_demo_generate": "exact_match,none",
    "qserve_demo_text": "bits_per_byte,none",
}
# What lm-eval, datasets and their dependencies warn of is theirs.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("offline_hub")]


class Forwarder:
    """A loopback port in front of a unix socket: lm-eval can't speak to one."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._path)
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for one in (self._listener, *self._ends):
            one.close()


def evaluate(url: str, key: str) -> dict[str, Any]:
    arguments = {
        "model": "demo",
        "base_url": f"{url}/v1/completions",
        "tokenizer": str(chat_model_path()),
        "tokenizer_backend": "huggingface",
        "num_concurrent": 1,
        "max_length": 1023,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_API_KEY", key)
        return answered("local-completions", arguments)


def answered(model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    from lm_eval.tasks import TaskManager

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        results = lm_eval.simple_evaluate(
            model=model,
            model_args=arguments,
            tasks=list(TASKS),
            task_manager=TaskManager(include_path=str(EVALS), include_defaults=False),
            limit=LIMIT,
            bootstrap_iters=0,
        )
    assert results is not None
    return results


@pytest.fixture(scope="module")
def through(service: Service) -> dict[str, Any]:
    return evaluate(service.url, KEY)


@pytest.fixture(scope="module")
def direct(service: Service) -> Iterator[dict[str, Any]]:
    """vLLM asked itself, with its internal key."""
    family = psutil.Process(service.process.pid).children(recursive=True)
    keys = {environment(process).get("VLLM_API_KEY") for process in family} - {None}
    assert len(keys) == 1
    (path,) = service.temporary.glob("qserve-*/chat.sock")
    forwarder = Forwarder(Path(os.fspath(path)))
    yield evaluate(forwarder.url, str(keys.pop()))
    forwarder.close()


@pytest.fixture(scope="module")
def in_process() -> dict[str, Any]:
    arguments = {"pretrained": str(chat_model_path()), "dtype": "float32", "device": "cpu", "batch_size": 8}
    return answered("hf", arguments)


@pytest.fixture(scope="module")
def seen(service: Service, tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    return inspect_server(service.url, KEY, None, None, tmp_path_factory.mktemp("tokenizers"))


@pytest.mark.parametrize("on", [True, False], ids=["thinking on", "thinking off"])
def test_a_model_that_thinks_scores_as_in_process(on: bool, seen: ServedModel) -> None:
    check_scores(seen, chat_model_path(), on, limit=24)


def test_a_thinking_budget_ends_thoughts(seen: ServedModel) -> None:
    """No parser tells the demo's thoughts apart: vLLM knows their tags by --reasoning-config."""
    check_thinking_budget(seen)


@pytest.mark.parametrize(("task", "metric"), TASKS.items())
def test_the_gateway_changes_no_answer(through: dict[str, Any], direct: dict[str, Any], task: str, metric: str) -> None:
    assert through["results"][task][metric] == direct["results"][task][metric]
    for one, other in zip(samples(through, task), samples(direct, task), strict=True):
        assert one["filtered_resps"] == other["filtered_resps"]


def test_accuracies_are_those_of_transformers(through: dict[str, Any], in_process: dict[str, Any]) -> None:
    for task in ("qserve_demo_choice", "qserve_demo_generate"):
        assert through["results"][task][TASKS[task]] == in_process["results"][task][TASKS[task]], task
    generated = (samples(of, "qserve_demo_generate") for of in (through, in_process))
    assert all(one["filtered_resps"] == other["filtered_resps"] for one, other in zip(*generated, strict=True))


def test_log_likelihoods_are_those_of_transformers(through: dict[str, Any], in_process: dict[str, Any]) -> None:
    worst = 0.0
    for one, other in zip(*(samples(of, "qserve_demo_choice") for of in (through, in_process)), strict=True):
        for (logprob, is_greedy), (meant, meant_greedy) in zip(
            one["filtered_resps"], other["filtered_resps"], strict=True
        ):
            worst = max(worst, abs(logprob - meant))
            assert is_greedy == meant_greedy
    print(f"largest difference of a log-likelihood: {worst:.2e}")
    assert worst < 1e-4
    bits = [of["results"]["qserve_demo_text"][TASKS["qserve_demo_text"]] for of in (through, in_process)]
    assert bits[0] == pytest.approx(bits[1], rel=1e-4)


def samples(results: dict[str, Any], task: str) -> list[dict[str, Any]]:
    return sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
