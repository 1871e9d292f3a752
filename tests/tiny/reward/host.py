"""A reward worker's app over HTTP, in this process, and every way in which a client can ask it for rewards."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp

from qserve.reward.recipe import read_recipe
from qserve.reward.recipe.parts import RecipeScorer
from qserve.reward.recipe.without_model import NoModel, process_memory
from qserve.reward.scoring.scorer import RewardScorer
from qserve.reward.serving.app import build_app
from tests.tiny.serving.served import Service

KEY = "internal-key"
MODEL = "rm"
SIMPLE = "sequence-classification"
PROMPT, ANSWERS = "What is 17+25?", ("It is 42.", "I do not know.")
# What hangs fails within this time, and not after the patience of a whole run.
TIMEOUT_S = 30.0


@contextmanager
def running(service: Service) -> Iterator[Service]:
    """Once it is ready; it ends well."""
    try:
        yield service.until_ready()
    finally:
        assert service.end() == 0, service.output


class ServedApp:
    """An ASGI app on a free port of loopback, in a thread of its own. `url` has no path."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            port=0,
            log_level="warning",
            lifespan="off",
            http="httptools",
            loop="asyncio",
            timeout_graceful_shutdown=5,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        deadline_s = time.monotonic() + TIMEOUT_S
        while not self._server.started:
            assert time.monotonic() < deadline_s, "the app does not listen"
            time.sleep(0.01)
        self.url = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def at_end(self) -> None:
        """Runs in the app's loop when it ends."""

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the app does not end"

    async def _serve(self) -> None:
        await self._server.serve()
        await self.at_end()


class Caller:
    """Who asks the server at `url`. `scorer` is over the same checkpoint: its template writes texts and token ids."""

    def __init__(self, url: str, scorer: RewardScorer) -> None:
        self.url, self.scorer = url, scorer
        self.client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=TIMEOUT_S)

    def post(self, path: str, **body: Any) -> Any:
        """The answer of a request that must work."""
        reply = self.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()


class Host(Caller):
    """The app on a free port of loopback. A scorer may be started and stopped by one host after another."""

    def __init__(self, scorer: RewardScorer, parts: RecipeScorer | None = None) -> None:
        scorer.start()
        app = build_app(scorer, (MODEL,), KEY, lambda: {"weights_bytes": scorer.loaded.weights_bytes}, parts)
        self._served = ServedApp(app)
        super().__init__(self._served.url, scorer)

    def close(self) -> None:
        self.client.close()
        self.scorer.stop()
        self._served.close()


class RecipeHost(ServedApp):
    """A worker's app over a recipe without a model."""

    def __init__(self, text: str, folder: Path) -> None:
        file = folder / "rewards.yaml"
        file.write_text(text)
        self.parts = RecipeScorer(read_recipe(file))
        super().__init__(build_app(NoModel(1000), (MODEL,), KEY, process_memory, self.parts))
        headers = {"authorization": f"Bearer {KEY}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=TIMEOUT_S)

    async def at_end(self) -> None:
        await self.parts.close()

    def post(self, path: str, **body: Any) -> Any:
        """The answer of a request that must work."""
        reply = self.client.post(path, json=body)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def ask(self, **body: Any) -> tuple[int, dict[str, Any]]:
        reply = self.client.post("/v1/reward", json=body)
        return reply.status_code, reply.json()

    def close(self) -> None:
        self.client.close()
        super().close()


Case = Callable[[Caller, str, Sequence[str]], list[float]]


def _texts(host: Caller, prompt: str, answers: Sequence[str]) -> list[str]:
    template = host.scorer.template
    return [template.render([_user(prompt), {"role": "assistant", "content": answer}]) for answer in answers]


def _ids(host: Caller, prompt: str, answers: Sequence[str]) -> list[list[int]]:
    return [host.scorer.template.encode(text).token_ids for text in _texts(host, prompt, answers)]


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _conversations(prompt: str, answers: Sequence[str]) -> list[list[dict[str, str]]]:
    return [[_user(prompt), {"role": "assistant", "content": answer}] for answer in answers]


def _by_index(rows: list[dict[str, Any]], field: str) -> list[float]:
    return [row[field] for row in sorted(rows, key=lambda row: row["index"])]


def _swift(host: Caller, prompt: str, answers: Sequence[str]) -> list[float]:
    conversations = _conversations(prompt, answers)
    each = [host.post("/v1/chat/completions", model=MODEL, messages=one) for one in conversations]
    return [float(one["choices"][0]["message"]["content"]) for one in each]


def _classify_messages(host: Caller, prompt: str, answers: Sequence[str]) -> list[float]:
    each = [host.post("/classify", messages=one, use_activation=False) for one in _conversations(prompt, answers)]
    return [one["data"][0]["probs"][0] for one in each]


def _openrlhf(host: Caller, prompt: str, answers: Sequence[str]) -> list[float]:
    """One sample a request, as its trainer sends them."""
    texts = _texts(host, prompt, answers)
    return [host.post("/get_reward", query=[text], prompts=[prompt], labels=[""])["rewards"][0] for text in texts]


# Raw rewards of the answers, in their order.
CASES: dict[str, Case] = {
    "native conversations": lambda h, p, a: _by_index(
        h.post("/v1/reward", model=MODEL, conversations=_conversations(p, a))["data"], "reward"
    ),
    "native responses": lambda h, p, a: _by_index(h.post("/v1/reward", prompt=p, responses=list(a))["data"], "reward"),
    "native texts": lambda h, p, a: _by_index(h.post("/v1/reward", texts=_texts(h, p, a))["data"], "reward"),
    "native token ids": lambda h, p, a: _by_index(h.post("/v1/reward", token_ids=_ids(h, p, a))["data"], "reward"),
    "native pairs": lambda h, p, a: [
        value
        for pair in h.post("/v1/reward", pairs=[{"prompt": p, "chosen": a[0], "rejected": a[1]}])["pairs"]
        for value in (pair["chosen_reward"], pair["rejected_reward"])
    ],
    "openrlhf": _openrlhf,
    "vllm classify text": lambda h, p, a: [
        row["probs"][0] for row in h.post("/classify", input=_texts(h, p, a), use_activation=False)["data"]
    ],
    "vllm classify token ids": lambda h, p, a: [
        row["probs"][0] for row in h.post("/classify", input=_ids(h, p, a), use_activation=False)["data"]
    ],
    "vllm classify messages": _classify_messages,
    "vllm pooling": lambda h, p, a: [
        row["data"][0] for row in h.post("/pooling", input=_texts(h, p, a), use_activation=False)["data"]
    ],
    "vllm score": lambda h, p, a: _by_index(
        h.post("/v1/score", queries=p, documents=list(a), use_activation=False)["data"], "score"
    ),
    "vllm rerank": lambda h, p, a: _by_index(
        h.post("/v2/rerank", query=p, documents=list(a), use_activation=False)["results"], "relevance_score"
    ),
    "verl on vllm": lambda h, p, a: [
        h.post("/classify", model=MODEL, input=text, activation=False)["data"][-1]["probs"][-1]
        for text in _texts(h, p, a)
    ],
    "verl on sglang": lambda h, p, a: [
        h.post("/v1/embeddings", model=MODEL, input=text)["data"][-1]["embedding"][-1] for text in _texts(h, p, a)
    ],
    "sglang text": lambda h, p, a: [one["embedding"][0] for one in h.post("/classify", text=_texts(h, p, a))],
    "sglang token ids": lambda h, p, a: [one["embedding"][0] for one in h.post("/classify", input_ids=_ids(h, p, a))],
    "tei predict text": lambda h, p, a: [
        row[0]["score"] for row in h.post("/predict", inputs=[[text] for text in _texts(h, p, a)], raw_scores=True)
    ],
    "tei predict pairs": lambda h, p, a: [
        row[0]["score"] for row in h.post("/predict", inputs=[[p, one] for one in a], raw_scores=True)
    ],
    "tei rerank": lambda h, p, a: _by_index(h.post("/rerank", query=p, texts=list(a), raw_scores=True), "score"),
    "swift": _swift,
    "llama-factory": lambda h, p, a: h.post("/v1/score/evaluation", model="model", messages=_texts(h, p, a))["scores"],
}
