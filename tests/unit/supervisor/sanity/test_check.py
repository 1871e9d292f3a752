"""Noise is told from text by a loss; what can't be asked is said, and is a failure with --strict only."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from qserve.errors import WorkerFailed
from qserve.supervisor.sanity.check import NOISE_SHARE, TEXTS, Sanity, check_sanity
from qserve.supervisor.sanity.checks import Checks
from qserve.supervisor.screen import Screen, ready_rows
from qserve.supervisor.worker import SupervisedWorker
from qserve.worker.base import UnixAddress, WorkerFacts, WorkerStatus
from tests.unit.supervisor.screen.test_screen import chat

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
    assert found.summary.startswith("self-test failed" if is_noise else "self-test passed")
    assert "11.93" in found.told and ("11.93" in found.summary) is is_noise


async def test_a_model_of_one_language_or_of_numbers_alone_is_no_noise() -> None:
    for name in TEXTS:
        assert not (await check_sanity(Worker(14.0, **{name: 3.0}), "m", VOCAB)).is_noise


async def test_a_loss_that_is_no_number_is_noise() -> None:
    async def nan(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        choice = {"logprobs": {"token_logprobs": [None, math.nan, -1]}}
        return 200, json.dumps({"choices": [{"index": index, **choice} for index in range(3)]}).encode()

    assert (await check_sanity(nan, "m", VOCAB)).is_noise


@pytest.mark.parametrize(
    ("status", "answer", "words", "passes"),
    [
        (400, b'{"error": {"message": "no echo here"}}', "400: no echo here", True),
        (500, b"oops", "answered 500", False),
        (0, b"", "did not answer", False),
        (200, b'{"choices": [{"index": 0, "logprobs": null, "text": "a"}]}', "no log-probabilities", True),
        (200, b'{"choices": [{"index": 0, "logprobs": {"token_logprobs": [null, null, -1]}}]}', "no log-prob", True),
    ],
)
async def test_what_can_t_be_asked_is_said_and_no_noise(status: int, answer: bytes, words: str, passes: bool) -> None:
    """An engine without log-probabilities is no fault of the model; one that breaks when it is asked is."""

    async def ask(method: str, path: str, body: bytes) -> tuple[int, bytes]:
        return status, answer

    found = await check_sanity(ask, "m", VOCAB)
    assert not found.is_noise and words in found.summary
    with contextlib.nullcontext() if passes else pytest.raises(WorkerFailed, match=words):
        found.refuse_noise("chat")


async def test_adapters_on_a_cpu_are_not_asked_for_what_ends_their_engine(tmp_path: Path) -> None:
    status = WorkerStatus(WorkerFacts("chat", ("m",), UnixAddress(tmp_path / "s"), "key", 1, 64, adapters=("tuned",)))
    launch: Any = SimpleNamespace(plan=replace(chat().plan, on_cpu=True))
    worker = SupervisedWorker(status, launch, tmp_path / "log", lambda *_: None)
    worker.vocab_size = VOCAB
    found = await worker.sanity()
    assert found is not None and found.best is None and "LoRA" in found.summary


def test_strict_refuses_noise_and_nothing_else() -> None:
    Sanity(VOCAB, {"English": 2.5}).refuse_noise("chat")
    with pytest.raises(WorkerFailed, match="--strict: chat: self-test failed: the model answers noise") as error:
        Sanity(VOCAB, {"English": 12.0}).refuse_noise("chat")
    assert error.value.exit_status == 5


def test_the_ready_screen_says_that_it_passed_and_warns_of_noise() -> None:
    def rows(loss: float) -> list[tuple[str, str]]:
        shown = replace(chat(), sanity=Sanity(VOCAB, {"English": loss}))
        return ready_rows("http://h", [shown], has_key=False, logs=Path("/logs"))

    assert any(text.endswith("self-test passed") for _, text in rows(2.5)) and "Warn" not in dict(rows(2.5))
    assert dict(rows(12.0))["Warn"].startswith("self-test failed: the model answers noise, loss 12.00")
    assert not any("passed" in text for _, text in rows(12.0))


@pytest.fixture
async def asked(tmp_path: Path) -> Any:
    """A worker whose answer comes when `asked.answer` is set, the checks of it, and what the screen and record hear."""
    answer: asyncio.Future[Sanity] = asyncio.get_running_loop().create_future()

    async def sanity() -> Sanity:
        return await answer

    worker: Any = SimpleNamespace(vocab_size=VOCAB, status=SimpleNamespace(name="chat"), sanity=sanity)
    events: list[dict[str, Any]] = []
    record: Any = SimpleNamespace(event=lambda worker, event, **details: events.append(details))
    told = io.StringIO()
    checks = Checks([worker], record, Screen(Console(file=told, width=200)))
    yield SimpleNamespace(answer=answer, checks=checks, events=events, told=told)
    await checks.close()


async def test_a_slow_check_is_told_after_the_service_is_ready(asked: Any) -> None:
    found = await asked.checks.first(strict=False, patience_s=0)
    assert found["chat"].is_pending and "is running" in found["chat"].summary and not asked.events
    asked.answer.set_result(Sanity(VOCAB, {"English": 12.0}))
    await asked.checks.rest()
    assert asked.events[0]["is_noise"] and "Warn    self-test failed" in asked.told.getvalue()


async def test_strict_waits_for_it(asked: Any) -> None:
    first = asyncio.create_task(asked.checks.first(strict=True, patience_s=0))
    await asyncio.sleep(0)
    assert not first.done()
    asked.answer.set_result(Sanity(VOCAB, {"English": 12.0}))
    with pytest.raises(WorkerFailed, match="answers noise"):
        await first


async def test_a_stop_ends_what_is_still_asked(asked: Any) -> None:
    await asked.checks.first(strict=False, patience_s=0)
    await asked.checks.close()
    assert asked.answer.cancelled() and not asked.events
