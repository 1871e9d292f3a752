"""What is stored with each item of suites that mix generated and scored tasks, against a server that is known by heart.

The server's answer tells by its text how many tokens it has and how it ended, so that every stored answer can be held
to the question under which it is stored.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from qserve.demo import chat_model_path
from qserve.errors import WorkerFailed
from qserve.evaluation import client
from qserve.evaluation.answers.thinking import Thinking
from qserve.evaluation.comparison.compare import Candidate
from qserve.evaluation.comparison.load import LoadFigures
from qserve.evaluation.harness import evaluate
from qserve.evaluation.request import EvalRequest
from qserve.evaluation.results import EvalResult
from qserve.evaluation.server import ServedModel
from qserve.evaluation.tasks import Tasks, load_tasks
from qserve.evaluation.tokenizer import load_tokenizer
from tests.tiny.serving.served import START_LIMIT_S, until
from tests.unit.evaluation.answering import answering

pytest.importorskip("lm_eval", reason="lm-eval is not installed: run make setup")
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("offline_hub")]

LIMIT = 17  # no multiple of any width
CUT_OFF, EMPTY = 5, 7
"""Questions that are multiples of these are cut off, or answered with nothing."""
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: items.jsonl}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
"""
GENERATE = """output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 32, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOICE = """output_type: multiple_choice
doc_to_choice: ["1", "2 and more", "3"]
doc_to_target: 1
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
TEXT = """output_type: loglikelihood_rolling
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}]
"""
SAMPLED = GENERATE.replace("do_sample: false", "do_sample: true, temperature: 1.0")
KINDS = {"asked": GENERATE, "chosen": CHOICE, "read": TEXT, "sampled": SAMPLED, "again": SAMPLED + "repeats: 3\n"}
GROUP = "group: both\ntask: [asked, chosen]\n"


@dataclass
class Known:
    """Answers question N with N + 1 words; where it samples the last one differs from answer to answer.

    `num_passing`: it refuses everything after so many prompts.
    """

    num_passing: float = float("inf")
    tokenizer: Any = field(default_factory=lambda: load_tokenizer(str(chat_model_path())))
    serial: Iterator[int] = field(default_factory=itertools.count)
    widths: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __call__(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/v1/chat/completions":
            return 200, self._generated(body["messages"][-1]["content"], body, is_chat=True)
        prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
        self.num_passing -= len(prompts)
        if self.num_passing < 0:
            return 503, {"error": {"message": "gone"}}
        if body.get("echo"):
            self.widths.append(len(prompts))
            return 200, {"choices": [_scored(index, ids) for index, ids in enumerate(prompts)]}
        answers = [self._generated(self.tokenizer.decode(ids), body) for ids in prompts]
        choices = [{**one["choices"][0], "index": index} for index, one in enumerate(answers)]
        used = sum(one["usage"]["completion_tokens"] for one in answers)
        return 200, {"choices": choices[::-1], "usage": {"completion_tokens": used}}

    def _generated(self, prompt: str, body: Any, *, is_chat: bool = False) -> dict[str, Any]:
        self.asked.append(prompt)
        number = number_of(prompt)
        serial = next(self.serial) if body.get("temperature", 1) else number
        text = "" if number % EMPTY == 0 else f"{'a ' * number}#{serial}"
        finish = "length" if number % CUT_OFF == 0 else "stop"
        of_kind = {"message": {"content": text, "reasoning_content": f"t{serial}"}} if is_chat else {"text": text}
        choices = [{"index": 0, "finish_reason": finish, **of_kind}]
        return {"choices": choices, "usage": {"completion_tokens": tokens_of(number)}}


def number_of(text: str) -> int:
    (number,) = re.findall(r"What is (\d+)\?", text)
    return int(number)


def tokens_of(number: int) -> int:
    return number + 1


def outcome_of(number: int) -> str:
    return "truncated" if number % CUT_OFF == 0 else "empty" if number % EMPTY == 0 else "complete"


def _scored(index: int, ids: Sequence[int]) -> dict[str, Any]:
    logprobs = [None, *(-0.1 * (1 + one % 7) for one in ids[1:]), -1.0]
    top = [None, *({"x": one} for one in logprobs[1:])]
    return {"index": index, "finish_reason": "length", "logprobs": {"token_logprobs": logprobs, "top_logprobs": top}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tasks")
    numbers = [*range(1, LIMIT - 1), 3, 4]  # two questions are asked twice
    assert len(numbers) == LIMIT
    rows = [{"question": f"What is {number}?", "answer": f"{'a ' * number}#{number}"} for number in numbers]
    (made / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, kind in KINDS.items():
        (made / f"{name}.yaml").write_text(TASK.format(name=name) + kind)
    (made / "both.yaml").write_text(GROUP)
    return made


@pytest.fixture(scope="module")
def known_tasks(folder: Path) -> Tasks:
    return load_tasks((*KINDS, "both"), (str(folder),))


@dataclass
class Evaluation:
    """`evaluate` of some of the known tasks; `cache` keeps the answers of an evaluation that is interrupted."""

    tasks: Tasks
    cache: Path

    def result(self, names: Sequence[str], server: Known, **more: Any) -> EvalResult:
        by_name = {spec.name: spec for spec in self.tasks.specs}
        tasks = Tasks(tuple(by_name[name] for name in names), self.tasks.manager)
        request = EvalRequest(tuple(names), **more)
        with answering(server) as url:
            served = ServedModel(url, "", "known", 4096, str(chat_model_path()), 4, {"engine": "known"})
            told = evaluate(served, request, self.cache, lambda *_: None, tasks, Thinking(on=request.chat))
        return EvalResult({}, told)


@pytest.fixture
def evaluation(known_tasks: Tasks, tmp_path: Path) -> Evaluation:
    return Evaluation(known_tasks, tmp_path)


def check(result: EvalResult, task: str, num_each: int = 1) -> None:
    """Each stored answer is the one that was scored, with what the server said of it; the figures are their sums."""
    found: list[tuple[int, dict[str, Any]]] = []
    samples = result.samples(task)
    assert len(samples) == LIMIT
    for sample in samples.values():
        number = number_of(str(sample["arguments"][0][0]))
        for told in (sample, *sample.get("repeats", ())):
            assert [one["text"] for one in told["generations"]] == [text for texts in told["resps"] for text in texts]
            found += [(number, one) for one in told["generations"]]
    assert len(found) == num_each * LIMIT
    for number, one in found:
        assert (one["outcome"], one["num_tokens"]) == (outcome_of(number), tokens_of(number)), (number, one)
    counts, outcomes = result.outcomes()[task], [one["outcome"] for _, one in found]
    mean = sum(one["num_tokens"] for _, one in found) / len(found)
    assert counts.mean_tokens == pytest.approx(mean, abs=0.05)
    assert counts.num_answers == len(found)
    assert (counts.truncated, counts.empty, counts.null) == (outcomes.count("truncated"), outcomes.count("empty"), 0)
    (sentence,) = [one for one in result.unusable(counts.unusable_share - 1e-9) if one.startswith(f"{task}:")]
    assert f"of {len(found)} answers" in sentence and f"({counts.truncated} cut off, {counts.empty} empty" in sentence
    assert not result.unusable(counts.unusable_share)


def check_right_answers(result: EvalResult) -> None:
    """What a right answer takes: tokens of all answers over the right ones, whatever else is in the suite."""
    one = Candidate("bf16", {}, {}, 0, 1.0, LoadFigures(1, 1, 10.0, 1.0, 1.0, 1.0), result, usd_per_hour=3.6)
    samples = result.samples("asked").values()
    num_tokens = sum(generation["num_tokens"] for sample in samples for generation in sample["generations"])
    num_right = sum(sample["exact_match"] for sample in samples)
    assert one.answer_tokens == pytest.approx(num_tokens / LIMIT, abs=0.05)
    assert one.tokens_per_right == pytest.approx(num_tokens / num_right, rel=0.01)
    assert one.seconds_per_right == pytest.approx(num_tokens / num_right / 10, rel=0.01)
    assert one.usd_per_right == pytest.approx(num_tokens / num_right / 10 * 0.001, rel=0.01)


@pytest.mark.parametrize(
    ("names", "width"),
    [
        (("asked", "chosen", "read"), 8),
        (("read", "chosen", "asked"), 2),
        (("both",), 64),
        (("again", "read", "asked"), 8),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else " ".join(value),
)
def test_each_answer_is_stored_under_its_question(
    evaluation: Evaluation, names: Sequence[str], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PROMPTS_A_REQUEST", width)
    server = Known()
    result = evaluation.result(names, server)
    check(result, "asked")
    if "again" in names:
        check(result, "again", 3)
    else:
        check_right_answers(result)
    if {"chosen", "both"} & set(names):
        assert max(server.widths) == min(width, 3 * LIMIT), "log-likelihoods go out several at a time"


@pytest.mark.parametrize("is_chat", [False, True], ids=["plain", "chat"])
def test_several_answers_to_each_item(evaluation: Evaluation, is_chat: bool) -> None:
    num_samples = 2
    result = evaluation.result(("chosen", "sampled"), Known(), chat=is_chat, num_samples=num_samples)
    check(result, "sampled", num_samples)
    counts = result.outcomes()["sampled"]
    assert counts.num_thoughts == (num_samples * LIMIT if is_chat else 0)
    assert "chosen" not in result.outcomes() and len(result.samples("chosen")) == LIMIT


def num_kept(cache: Path) -> int:
    (file,) = cache.glob("*.db")
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return int(connection.execute("SELECT COUNT(*) FROM unnamed").fetchone()[0])


def test_an_evaluation_that_was_interrupted_stores_the_same(
    evaluation: Evaluation, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("asked", "chosen", "again")
    with pytest.raises(WorkerFailed):
        evaluation.result(names, Known(num_passing=3 * LIMIT + 9))
    gc.collect()
    assert "never retrieved" not in capfd.readouterr().err, "of requests that nobody waits for any more"
    (kept,) = evaluation.cache.glob("*.generations")
    with kept.open("a") as lines:
        lines.write('\n0123456789abcdef {"text": "it was cut off }')  # by a full disk
    until(lambda: num_kept(evaluation.cache) > 0, START_LIMIT_S, "no answer is kept as it comes")
    server = Known(serial=itertools.count(1000))
    result = evaluation.result(names, server)
    check(result, "asked")
    check(result, "again", 3)
    assert len(server.asked) < 4 * LIMIT, "some answers were there before"
