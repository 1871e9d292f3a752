"""Noise is told from text by a loss; what can't be asked is said, and is a failure with --strict only."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qserve.engine.base import UnixAddress, WorkerEndpoint
from qserve.errors import WorkerFailed
from qserve.supervisor.sanity import NOISE_SHARE, TEXTS, Sanity, check_sanity
from qserve.supervisor.screen import ready_rows
from qserve.supervisor.worker import SupervisedWorker
from tests.unit.supervisor.test_screen import chat

VOCAB = 151_936
NOTHING = math.log(VOCAB)


class Worker:
    """Answers every token of every text with the same log-probability, except those of `texts`."""

    def __init__(self, loss: float, status: int = 200, **texts: float) -> None:
        self.loss, self.status, self.texts = loss, status, texts
        self.asked: dict[str, Any] = {}

    async def __call__(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.asked = {"path": path, **json.loads(body)}
        choices = [
            {"index": index, "logprobs": {"token_logprobs": [None, *[-self.texts.get(name, self.loss)] * 9, -0.1]}}
            for index, name in enumerate(TEXTS)
        ]
        return self.status, json.dumps({"choices": choices[::-1]}).encode()


@pytest.mark.parametrize(
    ("loss", "is_noise"),
    [(2.5, False), (NOISE_SHARE * NOTHING - 0.01, False), (NOISE_SHARE * NOTHING, True), (NOTHING, True), (19.0, True)],
)
async def test_noise_is_what_saves_too_little_of_the_vocabulary_s_logarithm(loss: float, is_noise: bool) -> None:
    worker = Worker(loss)
    found = await check_sanity(worker, "m", VOCAB)
    assert found.losses == pytest.approx(dict.fromkeys(TEXTS, loss))
    assert (worker.asked["path"], worker.asked["model"], worker.asked["echo"]) == ("/v1/completions", "m", True)
    assert found.is_noise is is_noise
    assert found.told.startswith("it serves noise" if is_noise else "it predicts text")
    assert "11.93" in found.told


async def test_a_model_of_one_language_or_of_numbers_alone_is_no_noise() -> None:
    for name in TEXTS:
        assert not (await check_sanity(Worker(14.0, **{name: 3.0}), "m", VOCAB)).is_noise


async def test_a_loss_that_is_no_number_is_noise() -> None:
    async def nan(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        choice = {"logprobs": {"token_logprobs": [None, math.nan, -1]}}
        return 200, json.dumps({"choices": [{"index": index, **choice} for index in range(3)]}).encode()

    assert (await check_sanity(nan, "m", VOCAB)).is_noise


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (400, b'{"error": {"message": "no echo here"}}', "400: no echo here"),
        (500, b"oops", "answered 500"),
        (0, b"", "did not answer"),
        (200, b'{"choices": [{"index": 0, "logprobs": null, "text": "a"}]}', "no log-probabilities"),
        (200, b'{"choices": [{"index": 0, "logprobs": {"token_logprobs": [null, null, -1]}}]}', "no log-prob"),
    ],
)
async def test_what_can_t_be_asked_is_said_and_no_noise(status: int, answer: bytes, words: str) -> None:
    async def ask(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return status, answer

    found = await check_sanity(ask, "m", VOCAB)
    assert not found.is_noise and words in found.told
    with pytest.raises(WorkerFailed, match=words):
        found.refuse_noise("chat")


async def test_adapters_on_a_cpu_are_not_asked_for_what_ends_their_engine(tmp_path: Path) -> None:
    endpoint = WorkerEndpoint("chat", ("m",), UnixAddress(tmp_path / "s"), "key", 1, 64, adapters=("tuned",))
    launch: Any = SimpleNamespace(plan=replace(chat().plan, on_cpu=True))
    worker = SupervisedWorker(endpoint, launch, tmp_path / "log", lambda *_: None)
    worker.vocab_size = VOCAB
    found = await worker.sanity()
    assert found is not None and found.best is None and "LoRA" in found.told


def test_strict_refuses_noise_and_nothing_else() -> None:
    Sanity(VOCAB, {"English": 2.5}).refuse_noise("chat")
    with pytest.raises(WorkerFailed, match="--strict: the chat worker is ready, but it serves noise") as error:
        Sanity(VOCAB, {"English": 12.0}).refuse_noise("chat")
    assert error.value.exit_status == 5


def test_the_ready_screen_shows_the_figures_and_warns_of_noise() -> None:
    def rows(loss: float) -> dict[str, str]:
        shown = replace(chat(), sanity=Sanity(VOCAB, {"English": loss}))
        return dict(ready_rows("http://h", [shown], has_key=False, logs=Path("/logs")))

    assert "it predicts text" in rows(2.5)["Check"] and "Warn" not in rows(2.5)
    assert "it serves noise" in rows(12.0)["Warn"] and "Check" not in rows(12.0)
