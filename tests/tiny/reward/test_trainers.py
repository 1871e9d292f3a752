"""Trainers' protocols over a judge that is a served chat model, and TRL's GRPO, unmodified, with it and with a model.

The judge is the demo, asked what it can tell: which of two numbers is larger.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.processes import python_for
from tests.tiny.reward.conftest import Opener
from tests.tiny.reward.host import KEY, MODEL, Host, RecipeHost
from tests.tiny.reward.plain_transformers import Plain
from tests.tiny.reward.trl_reward import TrlReward
from tests.tiny.serving.served import Service

KIND = "sequence-classification"
ROOT = Path(__file__).parents[3]
PAIRWISE = {
    "version": 1,
    "kind": "pairwise",
    "prompt": "Is {{ response_a }} larger than {{ response_b }}?",
    "verdict": r"\b(Yes|No)\b",
    "choices": {"Yes": 1, "No": 0},
}
POINTWISE = {**PAIRWISE, "kind": "pointwise", "prompt": "Is {{ response }} larger than 40?"}


@pytest.fixture(scope="module")
def judged(both: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., RecipeHost]]:
    """`judged(template, **options)`: a reward host whose only part asks the served demo."""
    running: list[RecipeHost] = []

    def start(template: dict[str, Any], **options: Any) -> RecipeHost:
        folder = tmp_path_factory.mktemp("recipe")
        (folder / "judge.yaml").write_text(json.dumps(template))
        part = {"name": "larger", "judge": "judge.yaml", "url": f"{both.url}/v1", "model": "demo", "max_tokens": 8}
        running.append(RecipeHost(json.dumps({"parts": [part | options]}), folder))
        return running[-1]

    yield start
    for one in running:
        one.close()


def numbers(num: int) -> list[tuple[str, str]]:
    rng = Random(7)
    pairs = [rng.sample(range(100), 2) for _ in range(num)]
    return [(str(max(pair)), str(min(pair))) for pair in pairs]


def templated(prompt: str, answer: str) -> str:
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def test_60_pairs_through_four_protocols_get_the_same_verdicts(judged: Callable[..., RecipeHost]) -> None:
    host = judged(PAIRWISE, max_unparsable=0.05, if_unparsable=0.5)
    pairs = [(f"question {number}", *pair) for number, pair in enumerate(numbers(60))]
    native = host.post("/v1/reward", pairs=[{"prompt": p, "chosen": a, "rejected": b} for p, a, b in pairs])
    right = sum(pair["margin"] > 0 for pair in native["pairs"])
    stats = native["meta"]["judges"]["larger"]
    print(f"{right} of 60 right, {stats}")
    assert right > 57 and stats["verdicts"] == 120 and abs(stats["position_bias"]) < 0.2
    meant = [reward for pair in native["pairs"] for reward in (pair["chosen_reward"], pair["rejected_reward"])]
    asked = host.parts._judges["larger"]._client.num_asked
    texts = [templated(prompt, answer) for prompt, *answers in pairs for answer in answers]
    prompts = [prompt for prompt, *_ in pairs for _ in range(2)]
    assert host.post("/get_reward", query=texts, prompts=prompts, labels=[""] * 120)["rewards"] == meant  # OpenRLHF
    verl = [row["probs"][0] for row in host.post("/classify", model=MODEL, input=texts, activation=False)["data"]]
    assert verl == meant
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    answers = [[{"role": "assistant", "content": answer}] for _, *both in pairs for answer in both]
    assert TrlReward(host.url, KEY)(prompts=turns, completions=answers, completion_ids=[]) == meant
    assert host.parts._judges["larger"]._client.num_asked == asked, "the same questions are asked once"


def test_a_verdict_that_can_t_be_read_is_counted_and_has_its_price_or_fails(judged: Callable[..., RecipeHost]) -> None:
    """A question that is answered by a number gives no verdict."""
    answers = ["Is 99 larger than 40?", "What is 12+30?", "Is 7 larger than 40?"]
    template = {**POINTWISE, "prompt": "{{ response }}"}
    strict = judged(template, max_unparsable=0.5)
    status, answer = strict.ask(prompt="Ask.", responses=answers)
    assert (status, answer["error"]["code"]) == (502, "judge_unparsable"), answer
    host = judged(template, max_unparsable=0.5, if_unparsable=0.25)
    answer = host.post("/v1/reward", prompt="Ask.", responses=answers)
    assert [row["reward"] for row in answer["data"]] == [1.0, 0.25, 0.0]
    assert answer["meta"]["judges"]["larger"]["unparsable"] == 1
    # verl sends one text a request.
    for text, meant in zip(answers[::2], (1.0, 0.0), strict=True):
        (row,) = host.post("/classify", model=MODEL, input=templated("Ask.", text), activation=False)["data"]
        assert row["probs"][-1] == meant


def test_a_step_of_grpo_is_rewarded_by_a_model_and_a_judge(
    opened: Opener, judged: Callable[..., RecipeHost], made: Callable[[str], Path], tmp_path: Path
) -> None:
    model, judge = Host(opened(KIND, truncate="right")), judged(POINTWISE, max_unparsable=1, if_unparsable=0)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [*python_for("import tests.tiny.reward.grpo_step"), KEY, str(tmp_path), model.url, judge.url]
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=180
        )
    finally:
        model.close()
    assert done.returncode == 0, done.stderr[-4000:]
    step = json.loads(done.stdout.splitlines()[-1])
    plain, template = Plain(KIND, made(KIND)), model.scorer.template
    meant = [float(plain.values(template.encode(one).token_ids)[-1, 0]) for one in step["conversations"]]
    assert len(meant) == 4
    assert step["rewards"][0] == pytest.approx(meant, abs=1e-5)
    verdicts = judge.post("/v1/reward", conversations=step["conversations"])
    assert step["rewards"][1] == [row["reward"] for row in verdicts["data"]]
    both = [sum(pair) for pair in zip(*step["rewards"], strict=True)]
    assert step["logged"] == pytest.approx(sum(both) / 4, abs=1e-4)
