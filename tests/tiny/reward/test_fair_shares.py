"""A request with thousands of texts beside small ones, over the real app: rows are counted, no seconds."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from qserve.reward.scoring.fair_queue import Flow
from qserve.reward.scoring.row_queue import Job
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import Host

PROMPT, NUM_FLOOD = "What is 17+25?", 5000
# A minute's work on a busy machine; only what hangs takes longer.
_FLOOD_S = 120


@pytest.fixture(scope="module")
def host(opened: Opener) -> Iterator[Host]:
    one = Host(opened("sequence-classification", truncate="refuse"))
    yield one
    one.close()


class Flood:
    """A request on its way."""

    def __init__(self, host: Host, texts: list[str]) -> None:
        self._host, self._texts = host, texts
        self.status = 0
        self.num_rewards = 0
        self.thread = threading.Thread(target=self._ask, daemon=True)
        self.thread.start()

    def _ask(self) -> None:
        reply = self._host.client.post("/v1/reward", json={"texts": self._texts}, timeout=_FLOOD_S)
        self.status, self.num_rewards = reply.status_code, len(reply.json().get("data", ()))

    def until_computed(self, num_rows: int) -> None:
        before = self._host.scorer.stats.num_rows
        while self._host.scorer.stats.num_rows < before + num_rows:
            assert self.thread.is_alive()
            time.sleep(0.001)


def counting_rows(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each text of a request of two texts: the rows that were computed between its arrival and its delivery."""
    waited: list[int] = []
    put, stats = host.scorer._queue.put, host.scorer.stats

    def counted(jobs: Sequence[Job], flow: Flow) -> None:
        put([watched(job, stats.num_rows) for job in jobs] if len(jobs) == 2 else jobs, flow)

    def watched(job: Job, before: int) -> Job:
        def deliver(output: Any) -> None:
            waited.append(stats.num_rows - before)
            job.deliver(output)

        return Job(job.text, deliver, job.is_cancelled)

    monkeypatch.setattr(host.scorer._queue, "put", counted)
    return waited


def test_two_responses_wait_for_two_rows_and_not_for_the_flood(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = counting_rows(host, monkeypatch)
    flood = Flood(host, [f"flood {number} of this request" for number in range(NUM_FLOOD)])
    for _ in range(3):
        flood.until_computed(2)
        assert len(host.post("/v1/reward", prompt=PROMPT, responses=["42", "41"])["data"]) == 2
    assert flood.thread.is_alive(), "the flood was over before the small requests were answered"
    before = host.scorer.stats.num_rows
    flood.thread.join(_FLOOD_S)
    assert (flood.status, flood.num_rewards) == (200, NUM_FLOOD)
    assert host.scorer.stats.num_rows > before + 20
    # The row that runs and the one after it, which the two texts are in. A row may be chosen while they arrive.
    assert len(waited) == 6 and max(waited) <= 3, waited


def test_a_flood_is_tokenized_only_so_far_ahead_as_rows_need(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded, most = 0, 0
    encode, done = host.scorer.template.encode, host.scorer.stats.num_items

    def counted(*args: object, **more: object) -> object:
        nonlocal encoded, most
        encoded += 1
        most = max(most, encoded - (host.scorer.stats.num_items - done))
        return encode(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(host.scorer.template, "encode", counted)
    flood = Flood(host, ["one two three four five six seven eight nine ten"] * 4000)
    flood.thread.join(_FLOOD_S)
    assert encoded == 4000
    assert most < 2500


def test_an_error_late_in_a_flood_ends_it(host: Host) -> None:
    texts = ["fine"] * 3000 + ["word " * 100_000] + ["fine"] * 3000
    before = host.scorer.stats.num_items
    reply = host.client.post("/v1/reward", json={"texts": texts})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "texts.3000")
    assert host.scorer.stats.num_items - before <= 3500


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": PROMPT, "responses": ["a"] * 200_000},
        {"texts": ["a"] * 40_000},
        {"pairs": [{"prompt": "p", "chosen": "a", "rejected": "b"}] * 20_000},
    ],
    ids=["responses", "texts", "pairs"],
)
def test_more_texts_than_a_request_may_have_are_refused(host: Host, body: dict[str, object]) -> None:
    host.post("/v1/reward", texts=["the rows of the last test are done"])
    before = host.scorer.stats.num_rows
    reply = host.client.post("/v1/reward", content=json.dumps(body), headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_value")
    assert host.scorer.stats.num_rows == before


def test_a_text_that_can_t_fit_is_refused_before_it_is_tokenized(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> list[int]:
        raise AssertionError("it was tokenized")

    monkeypatch.setattr(host.scorer.loaded.tokenizer, "encode", never)
    reply = host.client.post("/get_reward", json={"query": ["a " * 2_000_000]})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_text_of_megabytes_is_cut_as_a_short_one_is(host: Host, side: str) -> None:
    words = [f"word{number} " for number in range(60_000)]
    text = "".join(words)
    kept = host.scorer.template.encode(text, truncate=side, max_length=50).token_ids  # type: ignore[arg-type]
    whole = host.scorer.loaded.tokenizer.encode(text)
    assert kept == (whole[-50:] if side == "left" else whole[:50])


@pytest.mark.parametrize("body", [{"mean": 0, "std": 5e-324}, {"mean": 1e308, "std": 1}, {"mean": 0, "std": 0}])
def test_a_normalization_that_leaves_no_number_is_refused(host: Host, body: dict[str, float]) -> None:
    reply = host.client.post("/v1/reward", json={"texts": ["a"], "normalize": body})
    assert reply.status_code == 400, reply.text
    assert "normalize" in reply.json()["error"]["message"]
