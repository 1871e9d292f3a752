"""Model, rules and judges behind one endpoint, over the real app; the judge is a chat server of known verdicts."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from qserve.cli.reward.source import opened_scorer
from qserve.errors import UsageError
from qserve.reward.protocols.job import Text
from qserve.reward.recipe import read_recipe
from qserve.reward.recipe.parts import RecipeScorer
from qserve.wire.worker_headers import CLIENT
from qserve.worker.heartbeat import Heartbeat, read_heartbeat
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import CASES, Host, RecipeHost, ServedApp

PROMPT, ANSWERS = "What is 17+25?", ("It is 42.", "I do not know.")


class FakeJudge:
    """Prefers the answer with more letters `e`, but the first of two that are nearly equal; and counts what it is
    asked. `says` may be replaced."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        self.says: Callable[[str], str] = self.verdict
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        self._served = ServedApp(app)
        self.url = f"{self._served.url}/v1"
        self.close = self._served.close

    async def _answer(self, request: Request) -> JSONResponse:
        body = await request.json()
        question = body["messages"][-1]["content"]
        self.questions.append(question)
        message = {"role": "assistant", "content": self.says(question)}
        return JSONResponse({"choices": [{"index": 0, "message": message}]})

    @staticmethod
    def verdict(question: str) -> str:
        pair = re.search(r"\[Answer A\]\n(.*?)\n\n\[Answer B\]\n(.*?)\n\nWhich", question, re.DOTALL)
        if pair is None:
            answer = re.search(r"\[Answer\]\n(.*?)\n\n", question, re.DOTALL)
            assert answer is not None
            return f"<think>Score: 1</think>Well.\nScore: {min(10, 1 + answer[1].count('e'))}"
        a, b = pair[1].count("e"), pair[2].count("e")
        return "Verdict: " + ("A" if a + 1 >= b else "B")


@pytest.fixture(scope="module")
def judge() -> Iterator[FakeJudge]:
    one = FakeJudge()
    yield one
    one.close()


@pytest.fixture
def hosted(tmp_path: Path) -> Iterator[Callable[[str], RecipeHost]]:
    running: list[RecipeHost] = []

    def start(text: str) -> RecipeHost:
        running.append(RecipeHost(text, tmp_path))
        return running[-1]

    yield start
    for one in running:
        one.close()


def test_rules_by_name_and_their_weighted_sum(hosted: Callable[[str], RecipeHost]) -> None:
    rules = "- {name: right, rule: math, weight: 1.0}\n- {name: form, rule: regex, pattern: '^It is', weight: 0.5}"
    host = hosted(f"parts:\n{rules}\n")
    status, answer = host.ask(prompt=PROMPT, responses=["It is 42", "42", "It is 41"], references="42")
    assert status == 200, answer
    assert [row["reward"] for row in answer["data"]] == [1.5, 1.0, 0.5]
    assert answer["data"][1]["attributes"] == {"right": 1.0, "form": 0.0}
    assert answer["meta"]["weights"] == {"right": 1.0, "form": 0.5}
    trainer = host.client.post(
        "/get_reward", json={"query": ["1+1=It is 2", "1+1=3"], "prompts": ["1+1=", "1+1="], "labels": ["2", "2"]}
    )
    assert trainer.json()["rewards"] == [1.5, 0.0]
    pairs = [{"prompt": "1+1?", "chosen": "2", "rejected": "3"}]
    assert host.ask(pairs=pairs, references=["2"])[1]["pairs"][0]["margin"] == 1.0
    for body, words in (
        ({"prompt": PROMPT, "responses": ["42"]}, "send 'references'"),
        ({"prompt": PROMPT, "responses": ["42", "43"], "references": ["42"]}, "'references' has 1 entries"),
        ({"token_ids": [[1, 2]], "references": "2"}, "token ids"),
    ):
        status, answer = host.ask(**body)
        assert status == 400 and words in answer["error"]["message"], answer


def test_a_model_and_a_rule_over_every_protocol_that_sends_text(opened: Opener, tmp_path: Path) -> None:
    """The model's own reward, and 0.5 for the form: what each protocol of one number tells."""
    file = tmp_path / "rewards.yaml"
    file.write_text("parts:\n- {name: m, model: demo}\n- {name: f, rule: regex, pattern: It is, weight: 0.5}\n")
    alone = Host(opened("sequence-classification", truncate="left"))
    numbers = ("native conv", "native resp", "openrlhf", "vllm score", "vllm rerank", "tei rerank", "swift", "llama")
    try:
        first, second = CASES["native responses"](alone, PROMPT, ANSWERS)
    finally:
        alone.close()
    both = Host(opened("sequence-classification", truncate="left"), RecipeScorer(read_recipe(file)))
    try:
        for case in (name for name in CASES if name.startswith(numbers)):
            assert CASES[case](both, PROMPT, ANSWERS) == pytest.approx([first + 0.5, second], abs=1e-5), case
    finally:
        both.close()


def judged(judge: FakeJudge, template: str, **more: object) -> str:
    judge.questions.clear()
    judge.says = judge.verdict
    options = {"name": "nice", "judge": template, "url": judge.url, "model": "any"} | more
    return "parts:\n- " + json.dumps(options) + "\n"


def test_a_pointwise_judge_scores_and_is_asked_once(hosted: Callable[[str], RecipeHost], judge: FakeJudge) -> None:
    host = hosted(judged(judge, "pointwise"))
    _, answer = host.ask(prompt=PROMPT, responses=["no", "eee"])
    assert [row["reward"] for row in answer["data"]] == pytest.approx([0, 3 / 9])
    host.ask(prompt=PROMPT, responses=["eee", "no"])
    assert len(judge.questions) == 2, "equal questions are answered from the cache"


def test_both_orders_take_the_judge_s_bias_out(hosted: Callable[[str], RecipeHost], judge: FakeJudge) -> None:
    host = hosted(judged(judge, "pairwise"))
    _, answer = host.ask(prompt=PROMPT, responses=["e", "ee", "eeeee"])
    # The first two differ by one letter: each wins where it stands first.
    assert [row["reward"] for row in answer["data"]] == pytest.approx([0.25, 0.25, 1.0])
    assert answer["meta"]["judges"]["nice"]["position_bias"] == pytest.approx(1 / 6)
    assert len(judge.questions) == 6
    status, answer = host.ask(prompt=PROMPT, responses=["alone"])
    assert status == 400 and "2 to 16 of them" in answer["error"]["message"]


def test_200_pairs_get_margins(hosted: Callable[[str], RecipeHost], judge: FakeJudge) -> None:
    host = hosted(judged(judge, "pairwise", at_once=32))
    pairs = [{"prompt": f"question {number}", "chosen": "eeee", "rejected": "x"} for number in range(200)]
    status, answer = host.ask(pairs=pairs)
    assert status == 200
    assert {pair["margin"] for pair in answer["pairs"]} == {1.0}


def test_votes_are_averaged_and_unparsable_ones_counted(hosted: Callable[[str], RecipeHost], judge: FakeJudge) -> None:
    host = hosted(judged(judge, "pointwise", votes=4, max_unparsable=0.25))
    answers = iter(["Score: 1", "Score: 10", "no idea", "Score: 10"])
    judge.says = lambda question: next(answers)
    _, answer = host.ask(prompt=PROMPT, responses=["a"])
    assert answer["data"][0]["reward"] == pytest.approx(2 / 3)
    stats = answer["meta"]["judges"]["nice"]
    assert (stats["template"], stats["verdicts"], stats["unparsable"]) == ("pointwise 1", 4, 1)
    judge.says = lambda question: "no idea"
    status, answer = host.ask(prompt=PROMPT, responses=["b"])
    assert (status, answer["error"]["code"]) == (502, "judge_unparsable")
    assert "4 of 4 answers of the judge" in answer["error"]["message"]


def test_verdicts_that_are_slow_to_read_hold_up_nobody_else(
    hosted: Callable[[str], RecipeHost], judge: FakeJudge, tmp_path: Path
) -> None:
    fields = {"version": 1, "kind": "pointwise", "prompt": "{{ response }}", "verdict": "(x+x+)+y", "scale": [0, 1]}
    (tmp_path / "slow.yaml").write_text(json.dumps(fields))
    host = hosted(judged(judge, "slow.yaml"))
    judge.says = lambda question: "x" * 30_000
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(host.ask, prompt=PROMPT, responses=list("abcdefgh"))
        others = 0
        while not slow.done():
            others += host.client.get("/health").status_code == 200
    assert others > 20, "the loop stood still"
    status, answer = slow.result()
    assert (status, answer["error"]["code"]) == (502, "judge_unparsable")
    assert (
        "8 of 8 answers of the judge" in answer["error"]["message"]
        and "last 2000 characters" in answer["error"]["message"]
    )


def test_a_judge_that_can_t_be_asked_is_a_502(hosted: Callable[[str], RecipeHost], judge: FakeJudge) -> None:
    host = hosted(judged(judge, "pointwise", url="http://127.0.0.1:9/v1"))
    status, answer = host.ask(prompt=PROMPT, responses=["a"])
    assert (status, answer["error"]["code"]) == (502, "judge_failed")
    assert "http://127.0.0.1:9/v1" in answer["error"]["message"]


def test_commands_that_load_a_model_say_who_scores_a_recipe(tmp_path: Path) -> None:
    file = tmp_path / "rewards.yaml"
    file.write_text("parts:\n- {name: m, model: demo}\n- {rule: math}\n")
    from qserve.reward.settings import RewardSettings

    with pytest.raises(UsageError, match="qserve up --reward"):
        opened_scorer(str(file), {**vars(RewardSettings()), "quant": "auto"})


def test_rules_and_judges_alone_need_no_torch() -> None:
    code = (
        "import sys, qserve.reward.__main__, qserve.reward.recipe.parts, qserve.reward.serving.app; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_rule_that_never_returns_holds_up_nobody_for_long(hosted: Callable[[str], RecipeHost]) -> None:
    """Neither its own request, nor one of another client, nor anybody once its client has left."""
    host = hosted("parts:\n- {name: slow, rule: regex, pattern: '(a+)+$'}\n")
    for process in host.parts._rules._processes:  # type: ignore[union-attr]
        process._item_s = 1.0
    endless = "a" * 60 + "b"
    status, answer = host.ask(prompt=PROMPT, responses=[endless, "aaa"])
    assert status == 200
    assert [row["reward"] for row in answer["data"]] == [0.0, 1.0]
    assert answer["meta"]["rules_failed"] == 1
    leaving = {CLIENT: "a"}
    with pytest.raises(httpx.ReadTimeout):
        body = {"prompt": PROMPT, "responses": [endless] * 60}
        host.client.post("/v1/reward", json=body, headers=leaving, timeout=0.5)
    status, answer = host.ask(prompt=PROMPT, responses=["aaa"] * 9)
    assert status == 200 and host.parts.num_failed < 10, "60 of one that has left"


async def test_requests_of_one_client_do_not_hold_up_another_s(hosted: Callable[[str], RecipeHost]) -> None:
    """As the gateway names them: thirty requests that take a second each, and one of somebody else."""
    host = hosted("parts:\n- {name: slow, rule: regex, pattern: '(a+)+$'}\n")
    for process in host.parts._rules._processes:  # type: ignore[union-attr]
        process._item_s = 1.0
    body = {"prompt": PROMPT, "responses": ["a" * 60 + "b"]}
    async with httpx.AsyncClient(base_url=host.url, headers=host.client.headers, timeout=60) as client:
        many = [asyncio.create_task(client.post("/v1/reward", json=body, headers={CLIENT: "a"})) for _ in range(30)]
        await asyncio.sleep(0.5)
        began_s = time.monotonic()
        one = await client.post("/v1/reward", json={**body, "responses": ["aaa"]}, headers={CLIENT: "b"})
        assert one.status_code == 200 and time.monotonic() - began_s < 6
        for task in many:
            task.cancel()
        await asyncio.gather(*many, return_exceptions=True)


def test_a_judge_that_takes_its_time_is_not_taken_for_a_hung_worker(judge: FakeJudge, tmp_path: Path) -> None:
    """While nothing is computed here the supervisor sees beats."""
    file = tmp_path / "rewards.yaml"
    file.write_text(judged(judge, "pointwise"))
    verdict = judge.verdict
    judge.says = lambda question: (time.sleep(2.5), verdict(question))[1]
    beats = tmp_path / "worker.beat"

    async def ask() -> list[float]:
        parts = RecipeScorer(read_recipe(file), Heartbeat(beats))
        try:
            scores = await parts.scores([Text(({"role": "assistant", "content": "eee"},), "texts.0")], None)
        finally:
            await parts.close()
        return [score.reward for score in scores]

    assert asyncio.run(ask()) == pytest.approx([3 / 9])
    told = read_heartbeat(beats)
    assert told is not None and told.num_steps >= 2
